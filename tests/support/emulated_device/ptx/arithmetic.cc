#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <type_traits>

#include "common/log.h"
#include "engine/float_convert.h"
#include "tests/support/emulated_device/ptx/warp.h"

namespace baton::engine::cuda::emulated::ptx {
namespace {

template <typename T>
using Values = std::array<T, kLanes>;

template <typename T>
Values<T> Read(Warp& w, int number) {
  Values<T> values;
  std::memcpy(values.data(), w.At<T>(number), sizeof(values));
  return values;
}

template <typename T>
void Write(Warp& w, int number, const Values<T>& values, uint32_t mask) {
  T* const to = w.At<T>(number);
  if (mask == kAllLanes) {
    std::memcpy(to, values.data(), sizeof(values));
    return;
  }
  for (int lane = 0; lane < kLanes; ++lane) {
    if (mask >> lane & 1) to[lane] = values[lane];
  }
}

template <typename T, typename F>
void Map1(const Instruction& i, uint32_t mask, Warp& w, F f) {
  const Values<T> a = Read<T>(w, i.operands[1]);
  Values<T> d;
  for (int lane = 0; lane < kLanes; ++lane) d[lane] = f(a[lane]);
  Write<T>(w, i.operands[0], d, mask);
}
template <typename T, typename F>
void Map2(const Instruction& i, uint32_t mask, Warp& w, F f) {
  const Values<T> a = Read<T>(w, i.operands[1]);
  const Values<T> b = Read<T>(w, i.operands[2]);
  Values<T> d;
  for (int lane = 0; lane < kLanes; ++lane) d[lane] = f(a[lane], b[lane]);
  Write<T>(w, i.operands[0], d, mask);
}
template <typename T, typename F>
void Map3(const Instruction& i, uint32_t mask, Warp& w, F f) {
  const Values<T> a = Read<T>(w, i.operands[1]);
  const Values<T> b = Read<T>(w, i.operands[2]);
  const Values<T> c = Read<T>(w, i.operands[3]);
  Values<T> d;
  for (int lane = 0; lane < kLanes; ++lane) {
    d[lane] = f(a[lane], b[lane], c[lane]);
  }
  Write<T>(w, i.operands[0], d, mask);
}

[[noreturn]] void Unknown(const Instruction& i, const Warp& w) {
  LOG(FATAL) << "PTX of " << w.kernel.name << ", line " << i.line
             << ": not for this type";
  std::abort();
}

// Calls f with a value of the C++ type.
template <typename F>
void WithInteger(const Instruction& i, Warp& w, F f) {
  const bool is_signed = i.type.kind == 's';
  switch (i.type.bytes) {
    case 2:
      return is_signed ? f(int16_t{}) : f(uint16_t{});
    case 4:
      return is_signed ? f(int32_t{}) : f(uint32_t{});
    case 8:
      return is_signed ? f(int64_t{}) : f(uint64_t{});
    default:
      Unknown(i, w);
  }
}
template <typename F>
void WithFloat(const Instruction& i, F f) {
  return i.type.bytes == 4 ? f(float{}) : f(double{});
}
template <typename F>
void WithNumber(const Instruction& i, Warp& w, F f) {
  if (i.type.kind == 'f') return WithFloat(i, f);
  return WithInteger(i, w, f);
}

// Without undefined overflow.
template <typename T>
auto Wide(T x) {
  if constexpr (std::is_floating_point_v<T>) {
    return x;
  } else {
    return static_cast<uint64_t>(x);
  }
}

float Flushed(float x) {
  return std::fpclassify(x) == FP_SUBNORMAL ? std::copysign(0.0f, x) : x;
}

// A result that is off by a unit in the last place, or is not, as its argument
// has it: what functions that are approximate may give (2^-22.5 of ex2, 2^-23
// of rcp, relative), and what nothing may depend on. Of 0 and infinity they are
// exact.
float Approximately(float y, float x) {
  if (x == 0 || !std::isfinite(x) || !std::isnormal(y)) return y;
  const uint32_t which = std::bit_cast<uint32_t>(x) * 2654435761u >> 30;
  const int off = which == 0 ? -1 : which == 1 ? 1 : 0;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(y) + off);
}

// One that is a number, if there is one; -0 is less than +0.
template <typename T>
T Least(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) {
    if (std::isnan(a)) return b;
    if (std::isnan(b)) return a;
    if (a == b) return std::signbit(a) ? a : b;
  }
  return a < b ? a : b;
}
template <typename T>
T Greatest(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) {
    if (std::isnan(a)) return b;
    if (std::isnan(b)) return a;
    if (a == b) return std::signbit(a) ? b : a;
  }
  return a < b ? b : a;
}

template <typename T>
T Quotient(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) {
    return a / b;
  } else {
    // Lanes that do not take part may divide by zero.
    if (b == 0) return static_cast<T>(~T{0});
    if constexpr (std::is_signed_v<T>) {
      if (b == -1) return static_cast<T>(0 - Wide(a));
    }
    return static_cast<T>(a / b);
  }
}

void Numbers(const Instruction& i, uint32_t mask, Warp& w) {
  WithNumber(i, w, [&](auto zero) {
    using T = decltype(zero);
    switch (i.op) {
      case Op::kAdd:
        return Map2<T>(i, mask, w, [](T a, T b) {
          return static_cast<T>(Wide(a) + Wide(b));
        });
      case Op::kSub:
        return Map2<T>(i, mask, w, [](T a, T b) {
          return static_cast<T>(Wide(a) - Wide(b));
        });
      case Op::kMul:
        return Map2<T>(i, mask, w, [](T a, T b) {
          return static_cast<T>(Wide(a) * Wide(b));
        });
      case Op::kMin:
        return Map2<T>(i, mask, w, Least<T>);
      case Op::kMax:
        return Map2<T>(i, mask, w, Greatest<T>);
      case Op::kDiv:
        return Map2<T>(i, mask, w, Quotient<T>);
      case Op::kNegate:
        return Map1<T>(i, mask, w, [](T a) {
          if constexpr (std::is_floating_point_v<T>) return -a;
          return static_cast<T>(0 - Wide(a));
        });
      case Op::kAbs:
        return Map1<T>(i, mask, w, [](T a) {
          if constexpr (std::is_floating_point_v<T>) return std::fabs(a);
          return static_cast<T>(a < 0 ? 0 - Wide(a) : Wide(a));
        });
      default:
        Unknown(i, w);
    }
  });
}

void Integers(const Instruction& i, uint32_t mask, Warp& w) {
  WithInteger(i, w, [&](auto zero) {
    using T = decltype(zero);
    using U = std::make_unsigned_t<T>;
    constexpr uint32_t kBits = 8 * sizeof(T);
    switch (i.op) {
      case Op::kMulHigh:
        return Map2<T>(i, mask, w, [](T a, T b) {
          return static_cast<T>(
              static_cast<__int128>(a) * static_cast<__int128>(b) >> kBits);
        });
      case Op::kMad:
        return Map3<T>(i, mask, w, [](T a, T b, T c) {
          return static_cast<T>(Wide(a) * Wide(b) + Wide(c));
        });
      case Op::kRemainder:
        return Map2<T>(i, mask, w, [](T a, T b) {
          if (b == 0) return a;
          if constexpr (std::is_signed_v<T>) {
            if (b == -1) return T{0};
          }
          return static_cast<T>(a % b);
        });
      case Op::kNot:
        return Map1<T>(i, mask, w, [](T a) { return static_cast<T>(~a); });
      case Op::kAnd:
        return Map2<T>(i, mask, w,
                       [](T a, T b) { return static_cast<T>(a & b); });
      case Op::kOr:
        return Map2<T>(i, mask, w,
                       [](T a, T b) { return static_cast<T>(a | b); });
      case Op::kXor:
        return Map2<T>(i, mask, w,
                       [](T a, T b) { return static_cast<T>(a ^ b); });
      case Op::kShiftLeft:
      case Op::kShiftRight: {
        const Values<T> a = Read<T>(w, i.operands[1]);
        const Values<uint32_t> by = Read<uint32_t>(w, i.operands[2]);
        Values<T> d;
        for (int lane = 0; lane < kLanes; ++lane) {
          const uint32_t n = by[lane];
          if (i.op == Op::kShiftLeft) {
            d[lane] = n >= kBits ? T{0}
                                 : static_cast<T>(static_cast<U>(a[lane]) << n);
          } else {
            // Of signed numbers the sign stays.
            d[lane] = static_cast<T>(n >= kBits ? (a[lane] < 0 ? -1 : 0)
                                                : a[lane] >> n);
          }
        }
        return Write<T>(w, i.operands[0], d, mask);
      }
      case Op::kInsertBits: {
        const Values<U> a = Read<U>(w, i.operands[1]);
        const Values<U> b = Read<U>(w, i.operands[2]);
        const Values<uint32_t> at = Read<uint32_t>(w, i.operands[3]);
        const Values<uint32_t> length = Read<uint32_t>(w, i.operands[4]);
        Values<U> d;
        for (int lane = 0; lane < kLanes; ++lane) {
          d[lane] = b[lane];
          const uint32_t first = at[lane] & 0xff;
          const uint32_t end =
              std::min<uint32_t>(kBits, first + (length[lane] & 0xff));
          for (uint32_t bit = first; bit < end; ++bit) {
            const U one = U{1} << bit;
            d[lane] = (d[lane] & ~one) |
                      ((a[lane] >> (bit - first) & 1) != 0 ? one : U{0});
          }
        }
        return Write<U>(w, i.operands[0], d, mask);
      }
      default:
        Unknown(i, w);
    }
  });
}

void Predicates(const Instruction& i, uint32_t mask, Warp& w) {
  uint32_t& d = w.Mask(i.operands[0]);
  const uint32_t a = w.Mask(i.operands[1]);
  const uint32_t b = i.operands.size() > 2 ? w.Mask(i.operands[2]) : 0;
  uint32_t result = 0;
  switch (i.op) {
    case Op::kAnd:
      result = a & b;
      break;
    case Op::kOr:
      result = a | b;
      break;
    case Op::kXor:
      result = a ^ b;
      break;
    case Op::kNot:
      result = ~a;
      break;
    case Op::kMove:
      result = a;
      break;
    default:
      Unknown(i, w);
  }
  d = (d & ~mask) | (result & mask);
}

void SetPredicate(const Instruction& i, uint32_t mask, Warp& w) {
  uint32_t result = 0;
  WithNumber(i, w, [&](auto zero) {
    using T = decltype(zero);
    const Values<T> a = Read<T>(w, i.operands[1]);
    const Values<T> b = Read<T>(w, i.operands[2]);
    for (int lane = 0; lane < kLanes; ++lane) {
      const T x = a[lane];
      const T y = b[lane];
      bool holds = false;
      switch (i.compare) {
        case Compare::kEq:
          holds = x == y;
          break;
        case Compare::kNe:
          // Not of NaN, unlike C++.
          holds = x < y || x > y;
          break;
        case Compare::kLt:
          holds = x < y;
          break;
        case Compare::kLe:
          holds = x <= y;
          break;
        case Compare::kGt:
          holds = x > y;
          break;
        case Compare::kGe:
          holds = x >= y;
          break;
      }
      if constexpr (std::is_floating_point_v<T>) {
        holds |= i.unordered && (std::isnan(x) || std::isnan(y));
      }
      result |= uint32_t{holds} << lane;
    }
  });
  uint32_t& d = w.Mask(i.operands[0]);
  d = (d & ~mask) | (result & mask);
}

// A double that is a whole number, as `mode` says.
double Whole(double x, char mode) {
  switch (mode) {
    case 'z':
      return std::trunc(x);
    case 'm':
      return std::floor(x);
    case 'p':
      return std::ceil(x);
    default:
      return std::nearbyint(x);
  }
}

uint64_t Converted(const Instruction& i, uint64_t bits) {
  const auto from_float = [&](double x) -> uint64_t {
    if (i.type.kind == 'f') {
      if (i.integral) x = Whole(x, i.mode);
      if (i.type.bytes == 8) return std::bit_cast<uint64_t>(x);
      return std::bit_cast<uint32_t>(static_cast<float>(x));
    }
    if (std::isnan(x)) return 0;
    x = Whole(x, i.mode);
    const int n = 8 * i.type.bytes;
    const bool is_signed = i.type.kind == 's';
    const double least = is_signed ? -std::ldexp(1.0, n - 1) : 0.0;
    const double beyond = std::ldexp(1.0, is_signed ? n - 1 : n);
    if (x < least) x = least;
    if (x >= beyond) {
      return is_signed ? (uint64_t{1} << (n - 1)) - 1
                       : ~uint64_t{0} >> (64 - n);
    }
    return is_signed ? static_cast<uint64_t>(static_cast<int64_t>(x))
                     : static_cast<uint64_t>(x);
  };
  if (i.source.kind == 'f') {
    return from_float(i.source.bytes == 8 ? std::bit_cast<double>(bits)
                                          : double{std::bit_cast<float>(
                                                static_cast<uint32_t>(bits))});
  }
  const int unused = 64 - 8 * i.source.bytes;
  bits <<= unused;
  const bool is_signed = i.source.kind == 's';
  bits = is_signed ? static_cast<uint64_t>(static_cast<int64_t>(bits) >> unused)
                   : bits >> unused;
  if (i.type.kind != 'f') return bits;
  if (i.type.bytes == 8) {
    return std::bit_cast<uint64_t>(
        is_signed ? static_cast<double>(static_cast<int64_t>(bits))
                  : static_cast<double>(bits));
  }
  return std::bit_cast<uint32_t>(
      is_signed ? static_cast<float>(static_cast<int64_t>(bits))
                : static_cast<float>(bits));
}

// Those of addresses, of which there are many.
template <typename To, typename From>
void ConvertAll(const Instruction& i, uint32_t mask, Warp& w) {
  const Values<From> a = Read<From>(w, i.operands[1]);
  Values<To> d;
  for (int lane = 0; lane < kLanes; ++lane) d[lane] = static_cast<To>(a[lane]);
  Write<To>(w, i.operands[0], d, mask);
}

void Convert(const Instruction& i, uint32_t mask, Warp& w) {
  const bool integers = i.type.kind != 'f' && i.source.kind != 'f';
  if (integers && i.type.bytes == 8 && i.source.bytes == 4 &&
      w.kernel.widths[i.operands[1]] == 4) {
    return i.source.kind == 's' ? ConvertAll<int64_t, int32_t>(i, mask, w)
                                : ConvertAll<uint64_t, uint32_t>(i, mask, w);
  }
  if (integers && i.type.bytes == 4 && i.source.bytes == 8 &&
      w.kernel.widths[i.operands[0]] == 4) {
    return ConvertAll<uint32_t, uint64_t>(i, mask, w);
  }
  for (int lane = 0; lane < kLanes; ++lane) {
    if ((mask >> lane & 1) == 0) continue;
    uint64_t bits = Converted(i, w.Bits(i.operands[1], lane));
    if (i.type.kind != 'f') {
      const int unused = 64 - 8 * i.type.bytes;
      bits = i.type.kind == 's'
                 ? static_cast<uint64_t>(static_cast<int64_t>(bits << unused) >>
                                         unused)
                 : bits << unused >> unused;
    }
    w.SetBits(i.operands[0], lane, bits);
  }
}

uint32_t FmaBf16(uint32_t a, uint32_t b, uint32_t c, int shift) {
  const auto at = [&](uint32_t word) {
    return double{Bf16ToFloat(static_cast<uint16_t>(word >> shift))};
  };
  // Exact in a double where it is in a bfloat16; kernels use no other.
  const double exact = at(a) * at(b) + at(c);
  return uint32_t{FloatToBf16(static_cast<float>(exact))} << shift;
}

uint32_t Permuted(uint32_t a, uint32_t b, uint32_t selector) {
  const uint64_t bytes = uint64_t{b} << 32 | a;
  uint32_t result = 0;
  for (int i = 0; i < 4; ++i) {
    const uint32_t which = selector >> (4 * i) & 0xf;
    uint32_t byte = static_cast<uint32_t>(bytes >> (8 * (which & 7)) & 0xff);
    if (which & 8) byte = byte & 0x80 ? 0xff : 0;
    result |= byte << (8 * i);
  }
  return result;
}

void Select(const Instruction& i, uint32_t mask, Warp& w) {
  const uint32_t which = w.Mask(i.operands[3]);
  if (i.type.bytes == 4) {
    const Values<uint32_t> a = Read<uint32_t>(w, i.operands[1]);
    const Values<uint32_t> b = Read<uint32_t>(w, i.operands[2]);
    Values<uint32_t> d;
    for (int lane = 0; lane < kLanes; ++lane) {
      d[lane] = which >> lane & 1 ? a[lane] : b[lane];
    }
    return Write<uint32_t>(w, i.operands[0], d, mask);
  }
  for (int lane = 0; lane < kLanes; ++lane) {
    if ((mask >> lane & 1) == 0) continue;
    w.SetBits(i.operands[0], lane,
              w.Bits(i.operands[which >> lane & 1 ? 1 : 2], lane));
  }
}

void Move(const Instruction& i, uint32_t mask, Warp& w) {
  const int bits = 8 * i.type.bytes;
  for (int lane = 0; lane < kLanes; ++lane) {
    if ((mask >> lane & 1) == 0) continue;
    switch (i.op) {
      case Op::kPack: {
        uint64_t all = 0;
        for (int k = 0; k < i.vector; ++k) {
          all |= w.Bits(i.operands[1 + k], lane) << (k * bits / i.vector);
        }
        w.SetBits(i.operands[0], lane, all);
        break;
      }
      case Op::kUnpack: {
        const uint64_t all = w.Bits(i.operands[i.vector], lane);
        for (int k = 0; k < i.vector; ++k) {
          w.SetBits(i.operands[k], lane, all >> (k * bits / i.vector));
        }
        break;
      }
      default:
        Unknown(i, w);
    }
  }
}

void Copy(const Instruction& i, uint32_t mask, Warp& w) {
  switch (i.type.bytes) {
    case 2:
      return Map1<uint16_t>(i, mask, w, [](uint16_t a) { return a; });
    case 4:
      return Map1<uint32_t>(i, mask, w, [](uint32_t a) { return a; });
    case 8:
      return Map1<uint64_t>(i, mask, w, [](uint64_t a) { return a; });
    default:
      Unknown(i, w);
  }
}

void MultiplyWide(const Instruction& i, uint32_t mask, Warp& w) {
  for (int lane = 0; lane < kLanes; ++lane) {
    if ((mask >> lane & 1) == 0) continue;
    const auto of = [&](int operand) {
      const int unused = 64 - 8 * i.type.bytes;
      const uint64_t bits = w.Bits(i.operands[operand], lane) << unused;
      return i.type.kind == 's'
                 ? static_cast<uint64_t>(static_cast<int64_t>(bits) >> unused)
                 : bits >> unused;
    };
    w.SetBits(i.operands[0], lane, of(1) * of(2));
  }
}

}  // namespace

bool ExecuteArithmetic(const Instruction& i, uint32_t mask, Warp& w) {
  switch (i.op) {
    case Op::kAdd:
    case Op::kSub:
    case Op::kMul:
    case Op::kMin:
    case Op::kMax:
    case Op::kDiv:
    case Op::kNegate:
    case Op::kAbs:
      Numbers(i, mask, w);
      return true;
    case Op::kAnd:
    case Op::kOr:
    case Op::kXor:
    case Op::kNot:
      if (i.type.kind == 'p') {
        Predicates(i, mask, w);
        return true;
      }
      [[fallthrough]];
    case Op::kMulHigh:
    case Op::kMad:
    case Op::kRemainder:
    case Op::kShiftLeft:
    case Op::kShiftRight:
    case Op::kInsertBits:
      Integers(i, mask, w);
      return true;
    case Op::kMulWide:
      MultiplyWide(i, mask, w);
      return true;
    case Op::kSetPredicate:
      SetPredicate(i, mask, w);
      return true;
    case Op::kConvert:
      Convert(i, mask, w);
      return true;
    case Op::kSelect:
      Select(i, mask, w);
      return true;
    case Op::kMove:
      if (i.type.kind == 'p') {
        Predicates(i, mask, w);
      } else {
        Copy(i, mask, w);
      }
      return true;
    case Op::kPack:
    case Op::kUnpack:
      Move(i, mask, w);
      return true;
    case Op::kFma:
      WithFloat(i, [&](auto zero) {
        using T = decltype(zero);
        Map3<T>(i, mask, w, [](T a, T b, T c) { return std::fma(a, b, c); });
      });
      return true;
    case Op::kSqrt:
      WithFloat(i, [&](auto zero) {
        using T = decltype(zero);
        Map1<T>(i, mask, w, [](T a) { return std::sqrt(a); });
      });
      return true;
    case Op::kExp2:
      Map1<float>(i, mask, w, [](float a) {
        a = Flushed(a);
        return Flushed(Approximately(std::exp2(a), a));
      });
      return true;
    case Op::kReciprocal:
      Map1<float>(i, mask, w, [](float a) {
        a = Flushed(a);
        return Flushed(Approximately(1.0f / a, a));
      });
      return true;
    case Op::kFmaBf16x2:
      Map3<uint32_t>(i, mask, w, [](uint32_t a, uint32_t b, uint32_t c) {
        return FmaBf16(a, b, c, 0) | FmaBf16(a, b, c, 16);
      });
      return true;
    case Op::kConvertBf16x2: {
      const Values<float> high = Read<float>(w, i.operands[1]);
      const Values<float> low = Read<float>(w, i.operands[2]);
      Values<uint32_t> d;
      for (int lane = 0; lane < kLanes; ++lane) {
        d[lane] = FloatToBf16(low[lane]) | uint32_t{FloatToBf16(high[lane])}
                                               << 16;
      }
      Write<uint32_t>(w, i.operands[0], d, mask);
      return true;
    }
    case Op::kPermute:
      Map3<uint32_t>(i, mask, w, Permuted);
      return true;
    default:
      return false;
  }
}

}  // namespace baton::engine::cuda::emulated::ptx
