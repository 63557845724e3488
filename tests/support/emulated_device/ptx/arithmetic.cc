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

// Handlers of a function of one, two and three operands.
template <typename T, auto kF>
void Map1(const Instruction& i, uint32_t mask, Warp& w) {
  const T* const a = w.At<T>(i.operands[1]);
  Values<T> d;
  for (int lane = 0; lane < kLanes; ++lane) d[lane] = kF(a[lane]);
  Write<T>(w, i.operands[0], d, mask);
}
template <typename T, auto kF>
void Map2(const Instruction& i, uint32_t mask, Warp& w) {
  const T* const a = w.At<T>(i.operands[1]);
  const T* const b = w.At<T>(i.operands[2]);
  Values<T> d;
  for (int lane = 0; lane < kLanes; ++lane) d[lane] = kF(a[lane], b[lane]);
  Write<T>(w, i.operands[0], d, mask);
}
template <typename T, auto kF>
void Map3(const Instruction& i, uint32_t mask, Warp& w) {
  const T* const a = w.At<T>(i.operands[1]);
  const T* const b = w.At<T>(i.operands[2]);
  const T* const c = w.At<T>(i.operands[3]);
  Values<T> d;
  for (int lane = 0; lane < kLanes; ++lane) {
    d[lane] = kF(a[lane], b[lane], c[lane]);
  }
  Write<T>(w, i.operands[0], d, mask);
}

// What f, called with a value of the instruction's C++ type, says.
template <typename F>
Handler WithInteger(const Instruction& i, F f) {
  const bool is_signed = i.type.kind == 's';
  switch (i.type.bytes) {
    case 2:
      return is_signed ? f(int16_t{}) : f(uint16_t{});
    case 4:
      return is_signed ? f(int32_t{}) : f(uint32_t{});
    case 8:
      return is_signed ? f(int64_t{}) : f(uint64_t{});
    default:
      return FailOfType;
  }
}
template <typename F>
Handler WithFloat(const Instruction& i, F f) {
  return i.type.bytes == 4 ? f(float{}) : f(double{});
}
template <typename F>
Handler WithNumber(const Instruction& i, F f) {
  if (i.type.kind == 'f') return WithFloat(i, f);
  return WithInteger(i, f);
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

Handler NumbersHandler(const Instruction& i) {
  return WithNumber(i, [&](auto zero) -> Handler {
    using T = decltype(zero);
    switch (i.op) {
      case Op::kAdd:
        return Map2<T,
                    [](T a, T b) { return static_cast<T>(Wide(a) + Wide(b)); }>;
      case Op::kSub:
        return Map2<T,
                    [](T a, T b) { return static_cast<T>(Wide(a) - Wide(b)); }>;
      case Op::kMul:
        return Map2<T,
                    [](T a, T b) { return static_cast<T>(Wide(a) * Wide(b)); }>;
      case Op::kMin:
        return Map2<T, Least<T>>;
      case Op::kMax:
        return Map2<T, Greatest<T>>;
      case Op::kDiv:
        return Map2<T, Quotient<T>>;
      case Op::kNegate:
        return Map1<T, [](T a) {
          if constexpr (std::is_floating_point_v<T>) return -a;
          return static_cast<T>(0 - Wide(a));
        }>;
      case Op::kAbs:
        return Map1<T, [](T a) {
          if constexpr (std::is_floating_point_v<T>) return std::fabs(a);
          return static_cast<T>(a < 0 ? 0 - Wide(a) : Wide(a));
        }>;
      default:
        return FailOfType;
    }
  });
}

template <typename T>
T Remainder(T a, T b) {
  if (b == 0) return a;
  if constexpr (std::is_signed_v<T>) {
    if (b == -1) return T{0};
  }
  return static_cast<T>(a % b);
}

template <typename T, bool kLeft>
void Shift(const Instruction& i, uint32_t mask, Warp& w) {
  using U = std::make_unsigned_t<T>;
  constexpr uint32_t kBits = 8 * sizeof(T);
  const T* const a = w.At<T>(i.operands[1]);
  const uint32_t* const by = w.At<uint32_t>(i.operands[2]);
  Values<T> d;
  for (int lane = 0; lane < kLanes; ++lane) {
    const uint32_t n = by[lane];
    if constexpr (kLeft) {
      d[lane] = n >= kBits ? T{0}
                           : static_cast<T>(static_cast<U>(a[lane])
                                            << (n & (kBits - 1)));
    } else {
      // Of signed numbers the sign stays.
      d[lane] = static_cast<T>(n >= kBits ? (a[lane] < 0 ? -1 : 0)
                                          : a[lane] >> (n & (kBits - 1)));
    }
  }
  Write<T>(w, i.operands[0], d, mask);
}

template <typename U>
void InsertBits(const Instruction& i, uint32_t mask, Warp& w) {
  constexpr uint32_t kBits = 8 * sizeof(U);
  const Values<U> a = Read<U>(w, i.operands[1]);
  const Values<U> b = Read<U>(w, i.operands[2]);
  const Values<uint32_t> at = Read<uint32_t>(w, i.operands[3]);
  const Values<uint32_t> length = Read<uint32_t>(w, i.operands[4]);
  Values<U> d;
  for (int lane = 0; lane < kLanes; ++lane) {
    const uint32_t first = at[lane] & 0xff;
    const uint32_t count = length[lane] & 0xff;
    const U ones =
        static_cast<U>(count >= kBits ? ~U{0} : (U{1} << count) - U{1});
    const U moved = first >= kBits ? U{0} : static_cast<U>(ones << first);
    const U bits = first >= kBits ? U{0} : static_cast<U>(a[lane] << first);
    d[lane] = static_cast<U>((b[lane] & ~moved) | (bits & moved));
  }
  Write<U>(w, i.operands[0], d, mask);
}

Handler IntegersHandler(const Instruction& i) {
  return WithInteger(i, [&](auto zero) -> Handler {
    using T = decltype(zero);
    switch (i.op) {
      case Op::kMulHigh:
        return Map2<T, [](T a, T b) {
          return static_cast<T>(static_cast<__int128>(a) *
                                    static_cast<__int128>(b) >>
                                8 * sizeof(T));
        }>;
      case Op::kMad:
        return Map3<T, [](T a, T b, T c) {
          return static_cast<T>(Wide(a) * Wide(b) + Wide(c));
        }>;
      case Op::kRemainder:
        return Map2<T, Remainder<T>>;
      case Op::kNot:
        return Map1<T, [](T a) { return static_cast<T>(~a); }>;
      case Op::kAnd:
        return Map2<T, [](T a, T b) { return static_cast<T>(a & b); }>;
      case Op::kOr:
        return Map2<T, [](T a, T b) { return static_cast<T>(a | b); }>;
      case Op::kXor:
        return Map2<T, [](T a, T b) { return static_cast<T>(a ^ b); }>;
      case Op::kShiftLeft:
        return Shift<T, /*kLeft=*/true>;
      case Op::kShiftRight:
        return Shift<T, /*kLeft=*/false>;
      case Op::kInsertBits:
        return InsertBits<std::make_unsigned_t<T>>;
      default:
        return FailOfType;
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

template <typename T, auto kHolds>
void Where(const Instruction& i, uint32_t mask, Warp& w) {
  const T* const a = w.At<T>(i.operands[1]);
  const T* const b = w.At<T>(i.operands[2]);
  // Without branches, for vectors.
  uint32_t result = 0;
  for (int lane = 0; lane < kLanes; ++lane) {
    bool holds = kHolds(a[lane], b[lane]);
    if constexpr (std::is_floating_point_v<T>) {
      holds |= i.unordered & (std::isnan(a[lane]) | std::isnan(b[lane]));
    }
    result |= uint32_t{holds} << lane;
  }
  uint32_t& d = w.Mask(i.operands[0]);
  d = (d & ~mask) | (result & mask);
}

Handler SetPredicateHandler(const Instruction& i) {
  return WithNumber(i, [&](auto zero) -> Handler {
    using T = decltype(zero);
    switch (i.compare) {
      case Compare::kEq:
        return Where<T, [](T x, T y) { return x == y; }>;
      case Compare::kNe:
        // Not of NaN, unlike C++.
        return Where<T, [](T x, T y) { return (x < y) | (x > y); }>;
      case Compare::kLt:
        return Where<T, [](T x, T y) { return x < y; }>;
      case Compare::kLe:
        return Where<T, [](T x, T y) { return x <= y; }>;
      case Compare::kGt:
        return Where<T, [](T x, T y) { return y < x; }>;
      case Compare::kGe:
        return Where<T, [](T x, T y) { return y <= x; }>;
    }
    return FailOfType;
  });
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

uint32_t ToBf16x2(float high, float low) {
  return FloatToBf16(low) | uint32_t{FloatToBf16(high)} << 16;
}

void ConvertBf16x2(const Instruction& i, uint32_t mask, Warp& w) {
  const float* const high = w.At<float>(i.operands[1]);
  const float* const low = w.At<float>(i.operands[2]);
  Values<uint32_t> d;
  for (int lane = 0; lane < kLanes; ++lane) {
    d[lane] = ToBf16x2(high[lane], low[lane]);
  }
  Write<uint32_t>(w, i.operands[0], d, mask);
}

float ApproximateExp2(float a) {
  a = Flushed(a);
  return Flushed(Approximately(std::exp2(a), a));
}
float ApproximateReciprocal(float a) {
  a = Flushed(a);
  return Flushed(Approximately(1.0f / a, a));
}
uint32_t FmaBf16x2(uint32_t a, uint32_t b, uint32_t c) {
  return FmaBf16(a, b, c, 0) | FmaBf16(a, b, c, 16);
}

}  // namespace

Handler ArithmeticHandler(const Instruction& i) {
  switch (i.op) {
    case Op::kAdd:
    case Op::kSub:
    case Op::kMul:
    case Op::kMin:
    case Op::kMax:
    case Op::kDiv:
    case Op::kNegate:
    case Op::kAbs:
      return NumbersHandler(i);
    case Op::kAnd:
    case Op::kOr:
    case Op::kXor:
    case Op::kNot:
      if (i.type.kind == 'p') return Predicates;
      [[fallthrough]];
    case Op::kMulHigh:
    case Op::kMad:
    case Op::kRemainder:
    case Op::kShiftLeft:
    case Op::kShiftRight:
    case Op::kInsertBits:
      return IntegersHandler(i);
    case Op::kSetPredicate:
      return SetPredicateHandler(i);
    case Op::kMove:
      return i.type.kind == 'p' ? Predicates : MoveHandler(i);
    case Op::kFma:
      return WithFloat(i, [](auto zero) -> Handler {
        using T = decltype(zero);
        return Map3<T, [](T a, T b, T c) { return std::fma(a, b, c); }>;
      });
    case Op::kSqrt:
      return WithFloat(i, [](auto zero) -> Handler {
        using T = decltype(zero);
        return Map1<T, [](T a) { return std::sqrt(a); }>;
      });
    case Op::kExp2:
      return Map1<float, ApproximateExp2>;
    case Op::kReciprocal:
      return Map1<float, ApproximateReciprocal>;
    case Op::kFmaBf16x2:
      return Map3<uint32_t, FmaBf16x2>;
    case Op::kConvertBf16x2:
      return ConvertBf16x2;
    case Op::kPermute:
      return Map3<uint32_t, Permuted>;
    default:
      return MoveHandler(i);
  }
}

}  // namespace baton::engine::cuda::emulated::ptx
