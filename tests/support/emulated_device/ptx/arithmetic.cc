#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <type_traits>

#include "common/log.h"
#include "engine/float_convert.h"
#include "tests/support/emulated_device/ptx/values.h"
#include "tests/support/emulated_device/ptx/warp.h"

namespace baton::engine::cuda::emulated::ptx {
namespace {

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
    case Op::kSetPredicate:
      SetPredicate(i, mask, w);
      return true;
    case Op::kMove:
      if (i.type.kind != 'p') return ExecuteMove(i, mask, w);
      Predicates(i, mask, w);
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
      return ExecuteMove(i, mask, w);
  }
}

}  // namespace baton::engine::cuda::emulated::ptx
