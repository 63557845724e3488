// What moves, selects and converts values.
#include <bit>
#include <cmath>

#include "tests/support/emulated_device/ptx/values.h"
#include "tests/support/emulated_device/ptx/warp.h"

namespace baton::engine::cuda::emulated::ptx {
namespace {

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

template <typename T>
void Copy(const Instruction& i, uint32_t mask, Warp& w) {
  Write<T>(w, i.operands[0], Read<T>(w, i.operands[1]), mask);
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

template <typename From, typename To>
void MultiplyWords(const Instruction& i, uint32_t mask, Warp& w) {
  const auto fits = [&](int operand) {
    return w.kernel.widths[i.operands[operand]] == sizeof(From);
  };
  if (!fits(1) || !fits(2)) return MultiplyWide(i, mask, w);
  const From* const a = w.At<From>(i.operands[1]);
  const From* const b = w.At<From>(i.operands[2]);
  Values<To> d;
  for (int lane = 0; lane < kLanes; ++lane) d[lane] = To{a[lane]} * b[lane];
  Write<To>(w, i.operands[0], d, mask);
}

}  // namespace

Handler MoveHandler(const Instruction& i) {
  switch (i.op) {
    case Op::kMulWide:
      if (i.type.bytes != 4) return MultiplyWide;
      return i.type.kind == 's' ? MultiplyWords<int32_t, int64_t>
                                : MultiplyWords<uint32_t, uint64_t>;
    case Op::kConvert:
      return Convert;
    case Op::kSelect:
      return Select;
    case Op::kMove:
      switch (i.type.bytes) {
        case 2:
          return Copy<uint16_t>;
        case 4:
          return Copy<uint32_t>;
        case 8:
          return Copy<uint64_t>;
        default:
          return FailOfType;
      }
    case Op::kPack:
    case Op::kUnpack:
      return Move;
    default:
      return nullptr;
  }
}

}  // namespace baton::engine::cuda::emulated::ptx
