// The kernel of pack_tiles.h. A block makes one tile.
#include "engine/cuda/pack_tiles.h"

#include "common/log.h"
#include "device_target.h"
#include "engine/cuda/rounding.cuh"

namespace baton::engine::cuda {
namespace {

constexpr uint32_t kPackThreads = 256;
constexpr int32_t kPackWarps = kPackThreads / 32;
constexpr float kFloatMax = 0x1.fffffep127f;

// The weights of the block's tile; zero where inputs are padded.
struct TileRows {
  std::byte* rows;
  DType type;
  int32_t inputs;

  // Bytes that tiles have, too.
  BATON_DEVICE bool keeps() const {
    return type == DType::kF8E4M3 || type == DType::kI8 || on_grids();
  }
  BATON_DEVICE bool on_grids() const { return type == DType::kU8; }
  BATON_DEVICE uint8_t& ByteAt(int32_t output, int32_t input) const {
    return reinterpret_cast<uint8_t*>(rows)[int64_t{output} * inputs + input];
  }
  BATON_DEVICE float At(int32_t output, int32_t input) const {
    if (input >= inputs) return 0.0f;
    if (keeps()) {
      // What counts is whether it is a number.
      const bool nan =
          type == DType::kF8E4M3 && (ByteAt(output, input) & 0x7fu) == 0x7fu;
      return BitsFloat(nan ? 0x7fc00000u : 0u);
    }
    const int64_t i = int64_t{output} * inputs + input;
    if (type == DType::kF32) return reinterpret_cast<const float*>(rows)[i];
    const uint16_t bits = reinterpret_cast<const uint16_t*>(rows)[i];
    return type == DType::kBf16 ? FromBf16(bits) : FromF16(bits);
  }
  // An output's, from `first` on; what lies on a grid, on this one. Asks for
  // the type once: the compiler takes long over what asks for each weight.
  template <int kCount>
  BATON_DEVICE void Read(int32_t output, int32_t first, const Int4Grid& grid,
                         float (&weights)[kCount]) const {
    const int64_t at = int64_t{output} * inputs + first;
    const int32_t left = inputs - first;
    if (on_grids()) {
      const auto* const numbers = reinterpret_cast<const uint8_t*>(rows) + at;
      BATON_UNROLL
      for (int i = 0; i < kCount; ++i) {
        const int32_t q = i < left ? numbers[i] : 0;
        const float weight =
            MulRn(static_cast<float>(q - grid.zero), grid.scale);
        weights[i] = i < left ? weight : 0.0f;
      }
    } else if (keeps()) {
      BATON_UNROLL
      for (int i = 0; i < kCount; ++i) weights[i] = At(output, first + i);
    } else if (type == DType::kF32) {
      const auto* const floats = reinterpret_cast<const float*>(rows) + at;
      BATON_UNROLL
      for (int i = 0; i < kCount; ++i) weights[i] = i < left ? floats[i] : 0.0f;
    } else {
      const auto* const halves = reinterpret_cast<const uint16_t*>(rows) + at;
      const bool bf16 = type == DType::kBf16;
      BATON_UNROLL
      for (int i = 0; i < kCount; ++i) {
        const uint16_t bits = i < left ? halves[i] : 0;
        weights[i] = bf16 ? FromBf16(bits) : FromF16(bits);
      }
    }
  }
};

BATON_DEVICE TileRows RowsOfBlock(const PackArgs& args) {
  const bool halves = args.type == DType::kF16 || args.type == DType::kBf16;
  const int32_t bytes_each = args.type == DType::kF32 ? 4 : halves ? 2 : 1;
  const int64_t bytes = int64_t{kTileOutputs} * args.inputs * bytes_each;
  return {args.rows + BlockX() * bytes, args.type, args.inputs};
}

// How an output's weights become bytes (QuantizeInt8, QuantizeFp8).
struct OutputRounding {
  float factor;
  float scale;
  bool constant;  // all become the same byte
};

BATON_DEVICE OutputRounding OutputRoundingOf(float largest, bool finite,
                                             float limit) {
  if (!finite) return {0.0f, BitsFloat(0x7fc00000u), true};
  const float scale = DivRn(largest, limit);
  const float factor = scale > 0.0f ? DivRn(limit, largest) : 0.0f;
  // What is all but zero becomes zero.
  if (!(factor <= kFloatMax)) return {0.0f, 0.0f, true};
  return {factor, scale, false};
}

// Of an output, by a warp.
BATON_DEVICE OutputRounding OutputRoundingOf(const TileRows& tile,
                                             int32_t output, float limit) {
  float largest = 0.0f;
  int32_t broken = 0;
  for (int32_t i = Thread() % 32; i < tile.inputs; i += 32) {
    const float magnitude = MagnitudeOf(tile.At(output, i));
    broken |= magnitude <= kFloatMax ? 0 : 1;
    largest = magnitude > largest ? magnitude : largest;
  }
  for (int mask = 16; mask > 0; mask /= 2) {
    const float other = ShuffleXor(largest, mask);
    largest = other > largest ? other : largest;
    broken |= ShuffleXor(broken, mask);
  }
  return OutputRoundingOf(largest, broken == 0, limit);
}

template <WeightFormat kFormat>
BATON_DEVICE void PutWeight(float value, const OutputRounding& rounding,
                            std::byte* at) {
  if constexpr (kFormat == WeightFormat::kBf16) {
    *reinterpret_cast<uint16_t*>(at) = ToBf16(value);
  } else if constexpr (kFormat == WeightFormat::kInt8) {
    *reinterpret_cast<int8_t*>(at) =
        rounding.constant ? int8_t{1} : ToInt8(value, rounding.factor);
  } else {
    *reinterpret_cast<uint8_t*>(at) =
        rounding.constant ? uint8_t{0} : ToE4m3(MulRn(value, rounding.factor));
  }
}

// bf16, and what has a scale per output.
template <WeightFormat kFormat>
BATON_KERNEL(kPackThreads)
PackOutputs(PackArgs args) {
  LetNextKernelBegin();
  AwaitEarlierKernels();
  const TileRows tile = RowsOfBlock(args);
  OutputRounding* const roundings =
      reinterpret_cast<OutputRounding*>(SharedMemory());
  if constexpr (HasOutputScales(kFormat)) {
    constexpr float kLimit = kFormat == WeightFormat::kInt8 ? 127.0f : kFp8Max;
    for (int32_t output = Thread() / 32; output < kTileOutputs;
         output += kPackWarps) {
      const OutputRounding rounding = OutputRoundingOf(tile, output, kLimit);
      if (Thread() % 32 == 0) {
        roundings[output] = rounding;
        float* const scale =
            args.scales + int64_t{BlockX()} * kTileOutputs + output;
        if (!tile.keeps() || rounding.constant) *scale = rounding.scale;
      }
    }
    SyncBlock();
  }
  const int32_t padded = PaddedInputs(args.inputs);
  std::byte* const out =
      args.out + int64_t{BlockX()} * TileBytes(kFormat, padded);
  // A thread has what a lane holds of a slice.
  for (int32_t unit = Thread(); unit < padded / kSliceInputs * 32;
       unit += Threads()) {
    const int32_t lane = unit % 32;
    BATON_NO_UNROLL
    for (int32_t of_lane = 0; of_lane < 4; ++of_lane) {
      const int32_t output = lane / 4 + of_lane % 2 * 8;
      const int32_t first =
          unit / 32 * kSliceInputs + of_lane / 2 * 32 + lane % 4 * 8;
      const int32_t left = args.inputs - first;
      OutputRounding rounding = {};
      if constexpr (HasOutputScales(kFormat)) rounding = roundings[output];
      const auto put = [&](int32_t i) {
        return out + PlaceOfWeight(kFormat, output, first + i, padded).byte;
      };
      if (WeightBits(kFormat) == 8 && tile.keeps()) {
        BATON_UNROLL
        for (int32_t i = 0; i < 8; ++i) {
          *reinterpret_cast<uint8_t*>(put(i)) =
              i < left ? tile.ByteAt(output, first + i) : uint8_t{0};
        }
        continue;
      }
      float weights[8];
      tile.Read(output, first, {}, weights);
      BATON_UNROLL
      for (int32_t i = 0; i < 8; ++i) {
        PutWeight<kFormat>(weights[i], i < left ? rounding : OutputRounding{},
                           put(i));
      }
    }
  }
}

BATON_DEVICE float Clamp(float x, float least, float greatest) {
  const float raised = x > least ? x : least;
  return raised < greatest ? raised : greatest;
}
BATON_DEVICE float RoundHalfEven(float x) {
  return SubRn(AddRn(x, kRoundingMagic), kRoundingMagic);
}
BATON_DEVICE float OnGrid(float w, float inverse, float zero) {
  return Clamp(RoundHalfEven(MulRn(w, inverse)), SubRn(0.0f, zero),
               SubRn(15.0f, zero));
}

// The exponent's bits of a bfloat16 that is a scale; 0 of what is none.
BATON_DEVICE uint32_t ExponentOf(uint16_t scale) {
  const uint32_t exponent = scale >> 7;
  return exponent < 255 ? exponent : 0;
}

// As FindInt4Grid does with `count` weights, step for step. Those behind them
// are zero.
BATON_DEVICE Int4Grid GridOf(const float (&weights)[kSliceInputs],
                             int32_t count) {
  constexpr int kShareCount = 5;
  constexpr float kShares[kShareCount] = {1.0f, 0.95f, 0.90f, 0.85f, 0.80f};
  constexpr int kLanes = 16;
  float least = 0.0f;
  float greatest = 0.0f;
  BATON_UNROLL
  for (int i = 0; i < kSliceInputs; ++i) {
    least = weights[i] < least ? weights[i] : least;
    greatest = weights[i] > greatest ? weights[i] : greatest;
  }
  const float middle = AddRn(MulRn(0.5f, least), MulRn(0.5f, greatest));
  constexpr float kFifteenth = 1.0f / 15.0f;
  const float step =
      SubRn(MulRn(greatest, kFifteenth), MulRn(least, kFifteenth));
  Int4Grid best = {0.0f, 0};
  float best_error = BitsFloat(0x7f800000u);
  BATON_NO_UNROLL
  for (int share = 0; share < kShareCount; ++share) {
    const uint16_t bits = ToBf16(MulRn(step, kShares[share]));
    if (ExponentOf(bits) == 0) continue;
    const float scale = FromBf16(bits);
    const float inverse = DivRn(1.0f, scale);
    const float zero =
        Clamp(RoundHalfEven(SubRn(7.5f, MulRn(middle, inverse))), 0.0f, 15.0f);
    float sums[kLanes] = {};
    float sum = 0.0f;  // of what is no whole sixteen
    BATON_UNROLL
    for (int i = 0; i < kSliceInputs; ++i) {
      const float error =
          SubRn(weights[i], MulRn(OnGrid(weights[i], inverse, zero), scale));
      const float square = MulRn(error, error);
      if (i / kLanes * kLanes + kLanes <= count) {
        sums[i % kLanes] = AddRn(sums[i % kLanes], square);
      } else if (i < count) {
        sum = AddRn(sum, square);
      }
    }
    BATON_UNROLL
    for (int lane = 0; lane < kLanes; ++lane) sum = AddRn(sum, sums[lane]);
    if (best.scale == 0.0f || sum < best_error) {
      best_error = sum;
      best = {scale, static_cast<int32_t>(zero)};
    }
  }
  return best;
}

// More than any exponent: a weight of the output is not finite.
constexpr uint32_t kNotFinite = 0xffff;

// The number of a weight on a grid.
BATON_DEVICE uint32_t NumberOf(float weight, float inverse, float zero) {
  return static_cast<uint32_t>(AddRn(OnGrid(weight, inverse, zero), zero));
}

// For a grid that was none: its numbers on another one.
BATON_DEVICE void MoveToGrid(const TileRows& tile, int32_t output,
                             int32_t first,
                             const float (&weights)[kSliceInputs],
                             int32_t count, const Int4Grid& grid) {
  const float inverse = grid.scale > 0.0f ? DivRn(1.0f, grid.scale) : 0.0f;
  const float zero = static_cast<float>(grid.zero);
  BATON_UNROLL
  for (int i = 0; i < kSliceInputs; ++i) {
    if (i >= count) break;
    tile.ByteAt(output, first + i) =
        static_cast<uint8_t>(NumberOf(weights[i], inverse, zero));
  }
}

// The grids of a tile's outputs and slices, where there are none yet, and the
// largest exponent of each output's, to `tops` in the block's memory, zeros at
// first.
BATON_DEVICE void FindGrids(const TileRows& tile, int32_t slices,
                            Int4Grid* grids, uint32_t* tops) {
  for (int32_t unit = Thread(); unit < kTileOutputs * slices;
       unit += Threads()) {
    const int32_t output = unit / slices;
    const int32_t first = unit % slices * kSliceInputs;
    float weights[kSliceInputs];
    tile.Read(output, first, grids[unit], weights);
    bool finite = true;
    BATON_UNROLL
    for (int i = 0; i < kSliceInputs; ++i) {
      finite = finite && MagnitudeOf(weights[i]) <= kFloatMax;
    }
    Int4Grid grid = grids[unit];
    if (finite && ExponentOf(ToBf16(grid.scale)) == 0) {
      const int32_t left = tile.inputs - first;
      const int32_t count = left < kSliceInputs ? left : kSliceInputs;
      grid = GridOf(weights, count);
      grids[unit] = grid;
      if (tile.on_grids()) {
        MoveToGrid(tile, output, first, weights, count, grid);
      }
    }
    AtomicMax(tops + output,
              finite ? ExponentOf(ToBf16(grid.scale)) : kNotFinite);
  }
}

// How the weights of an output and slice become numbers of [0, 15], and the 16
// bits that say so.
struct Int4Rounding {
  float inverse;
  float zero;
  uint32_t stored;  // the number of what is nothing
  bool lost;        // all are that
  bool none;        // all are 0: a weight of the output is not finite
  uint16_t bits;
};

// As QuantizeInt4 makes it, next to grids whose largest exponent is `top`.
BATON_DEVICE Int4Rounding RoundingOn(const Int4Grid& grid, uint32_t top) {
  constexpr uint32_t kExponentSpan = 31;
  Int4Rounding rounding = {};
  rounding.none = top == kNotFinite;
  if (rounding.none) return rounding;
  const uint16_t scale = ToBf16(grid.scale);
  const uint32_t exponent = ExponentOf(scale);
  const auto stored = static_cast<uint32_t>(grid.zero);
  rounding.lost = exponent == 0 || exponent + kExponentSpan < top;
  rounding.stored = stored;
  rounding.bits = static_cast<uint16_t>(
      rounding.lost ? stored
                    : (exponent + kExponentSpan - top) << 11 |
                          (scale & 127u) << 4 | stored);
  rounding.zero = static_cast<float>(grid.zero);
  rounding.inverse = rounding.lost ? 0.0f : DivRn(1.0f, grid.scale);
  return rounding;
}

// The numbers of eight weights from `first` on, the first one's lowest.
BATON_DEVICE uint32_t EightNumbers(const TileRows& tile, int32_t output,
                                   int32_t first,
                                   const Int4Rounding& rounding) {
  uint32_t word = 0;
  if (rounding.none) return word;
  const int32_t left = tile.inputs - first;
  if (tile.on_grids()) {
    BATON_UNROLL
    for (int i = 0; i < 8; ++i) {
      // What pads the inputs is nothing, too.
      const bool there = i < left && !rounding.lost;
      word |= (there ? tile.ByteAt(output, first + i) : rounding.stored)
              << i * 4;
    }
    return word;
  }
  float weights[8];
  tile.Read(output, first, {}, weights);
  BATON_UNROLL
  for (int i = 0; i < 8; ++i) {
    const uint32_t number =
        NumberOf(weights[i], rounding.inverse, rounding.zero);
    word |= (i < left ? number : rounding.stored) << i * 4;
  }
  return word;
}

BATON_KERNEL(kPackThreads)
PackInt4(PackArgs args) {
  constexpr WeightFormat kFormat = WeightFormat::kInt4;
  LetNextKernelBegin();
  AwaitEarlierKernels();
  const TileRows tile = RowsOfBlock(args);
  const int32_t padded = PaddedInputs(args.inputs);
  const int32_t slices = padded / kSliceInputs;
  Int4Grid* const grids = args.grids + BlockX() * kTileOutputs * slices;
  uint32_t* const tops = reinterpret_cast<uint32_t*>(SharedMemory());
  if (Thread() < kTileOutputs) tops[Thread()] = 0;
  SyncBlock();
  FindGrids(tile, slices, grids, tops);
  SyncBlock();
  if (Thread() < kTileOutputs) {
    const uint32_t top = tops[Thread()];
    args.scales[int64_t{BlockX()} * kTileOutputs + Thread()] =
        BitsFloat(top == kNotFinite ? 0x7fc00000u : top << 23);
  }
  std::byte* const out =
      args.out + int64_t{BlockX()} * TileBytes(kFormat, padded);
  // A thread has the two outputs that share bytes, of a slice.
  for (int32_t unit = Thread(); unit < slices * 8; unit += Threads()) {
    const int32_t output = unit % 8;
    const int32_t of_output = unit / 8;
    const int32_t first = of_output * kSliceInputs;
    const Int4Rounding low =
        RoundingOn(grids[output * slices + of_output], tops[output]);
    const Int4Rounding high =
        RoundingOn(grids[(output + 8) * slices + of_output], tops[output + 8]);
    BATON_NO_UNROLL
    for (int32_t input = first; input < first + kSliceInputs; input += 8) {
      const uint32_t lows = EightNumbers(tile, output, input, low);
      const uint32_t highs = EightNumbers(tile, output + 8, input, high);
      BATON_UNROLL
      for (int i = 0; i < 8; ++i) {
        out[PlaceOfWeight(kFormat, output, input + i, padded).byte] =
            static_cast<std::byte>((lows >> i * 4 & 15) | (highs >> i * 4 & 15)
                                                              << 4);
      }
    }
    uint16_t* const to = reinterpret_cast<uint16_t*>(
        out + PlaceOfSliceGrid(kFormat, output, first, padded));
    to[0] = low.bits;
    to[1] = high.bits;
  }
}

}  // namespace

void RunPackTiles(const PackArgs& args, StreamHandle* stream) {
  CHECK(IsWeightDType(args.type) ||
        (args.type == DType::kF8E4M3 && args.format == WeightFormat::kFp8) ||
        (args.type == DType::kI8 && args.format == WeightFormat::kInt8) ||
        (args.type == DType::kU8 && args.format == WeightFormat::kInt4))
      << DTypeName(args.type);
  CHECK(args.tiles > 0 && args.inputs > 0);
  CHECK_EQ(args.scales != nullptr, HasOutputScales(args.format));
  CHECK_EQ(args.grids != nullptr, HasSliceGrids(args.format));
  LaunchShape shape;
  shape.x = static_cast<uint32_t>(args.tiles);
  shape.threads = kPackThreads;
  // For kInt4 a word each.
  if (HasOutputScales(args.format)) {
    shape.shared_bytes = kTileOutputs * sizeof(OutputRounding);
  }
  switch (args.format) {
    case WeightFormat::kBf16:
      return Launch(PackOutputs<WeightFormat::kBf16>, "pack_bf16", shape,
                    stream, args);
    case WeightFormat::kFp8:
      return Launch(PackOutputs<WeightFormat::kFp8>, "pack_fp8", shape, stream,
                    args);
    case WeightFormat::kInt8:
      return Launch(PackOutputs<WeightFormat::kInt8>, "pack_int8", shape,
                    stream, args);
    case WeightFormat::kInt4:
      return Launch(PackInt4, "pack_int4", shape, stream, args);
  }
}

}  // namespace baton::engine::cuda
