// The kernel of pack_tiles.h. A block makes one tile.
//
// Never ran on a GPU: run on the emulated device only (docs/gpu.md).
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
  const std::byte* rows;
  DType type;
  int32_t inputs;

  // e4m3 stay what they are.
  BATON_DEVICE bool keeps() const { return type == DType::kF8E4M3; }
  BATON_DEVICE uint8_t ByteAt(int64_t i) const {
    return reinterpret_cast<const uint8_t*>(rows)[i];
  }
  BATON_DEVICE float At(int32_t output, int32_t input) const {
    if (input >= inputs) return 0.0f;
    const int64_t i = int64_t{output} * inputs + input;
    if (keeps()) {
      // What counts is whether it is one.
      return BitsFloat((ByteAt(i) & 0x7fu) == 0x7fu ? 0x7fc00000u : 0u);
    }
    if (type == DType::kF32) return reinterpret_cast<const float*>(rows)[i];
    const uint16_t bits = reinterpret_cast<const uint16_t*>(rows)[i];
    return type == DType::kBf16 ? FromBf16(bits) : FromF16(bits);
  }
};

BATON_DEVICE TileRows RowsOfBlock(const PackArgs& args) {
  const int32_t bytes_each = args.type == DType::kF32      ? 4
                             : args.type == DType::kF8E4M3 ? 1
                                                           : 2;
  const int64_t bytes = int64_t{kTileOutputs} * args.inputs * bytes_each;
  return {args.rows + BlockX() * bytes, args.type, args.inputs};
}

// How an output's weights become bytes (QuantizeInt8, QuantizeFp8).
struct OutputRounding {
  float factor;
  float scale;
  bool constant;  // all become the same byte
};

BATON_DEVICE OutputRounding RoundingOf(float largest, bool finite,
                                       float limit) {
  if (!finite) return {0.0f, BitsFloat(0x7fc00000u), true};
  const float scale = DivRn(largest, limit);
  const float factor = scale > 0.0f ? DivRn(limit, largest) : 0.0f;
  // What is all but zero becomes zero.
  if (!(factor <= kFloatMax)) return {0.0f, 0.0f, true};
  return {factor, scale, false};
}

// Of an output, by a warp.
BATON_DEVICE OutputRounding RoundingOf(const TileRows& tile, int32_t output,
                                       float limit) {
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
  return RoundingOf(largest, broken == 0, limit);
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
  AwaitEarlierKernels();
  const TileRows tile = RowsOfBlock(args);
  OutputRounding* const roundings =
      reinterpret_cast<OutputRounding*>(SharedMemory());
  if constexpr (HasOutputScales(kFormat)) {
    constexpr float kLimit = kFormat == WeightFormat::kInt8 ? 127.0f : kFp8Max;
    for (int32_t output = Thread() / 32; output < kTileOutputs;
         output += kPackWarps) {
      const OutputRounding rounding = RoundingOf(tile, output, kLimit);
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
    for (int32_t of_lane = 0; of_lane < 4; ++of_lane) {
      const int32_t output = lane / 4 + of_lane % 2 * 8;
      const int32_t first =
          unit / 32 * kSliceInputs + of_lane / 2 * 32 + lane % 4 * 8;
      OutputRounding rounding = {};
      if constexpr (HasOutputScales(kFormat)) rounding = roundings[output];
      BATON_UNROLL
      for (int32_t i = 0; i < 8; ++i) {
        const bool there = first + i < args.inputs;
        std::byte* const at =
            out + PlaceOfWeight(kFormat, output, first + i, padded).byte;
        if (there && kFormat == WeightFormat::kFp8 && tile.keeps()) {
          *reinterpret_cast<uint8_t*>(at) =
              tile.ByteAt(int64_t{output} * args.inputs + first + i);
        } else if (there) {
          PutWeight<kFormat>(tile.At(output, first + i), rounding, at);
        } else {
          PutWeight<kFormat>(0.0f, {}, at);
        }
      }
    }
  }
}

BATON_DEVICE float RoundInt4(float scaled) {
  const float rounded = SubRn(AddRn(scaled, kRoundingMagic), kRoundingMagic);
  const float least = rounded > -8.0f ? rounded : -8.0f;
  return least < 7.0f ? least : 7.0f;
}

// As QuantizeInt4 finds the scale of `count` weights, step for step; zero where
// there is none. Those behind them are zero.
BATON_DEVICE float Int4Scale(const float (&weights)[kSliceInputs],
                             int32_t count) {
  constexpr int kStepCount = 11;
  constexpr float kSteps[kStepCount] = {0.80f,  0.85f, 0.90f, 0.95f,
                                        1.00f,  1.05f, 1.10f, 1.15f,
                                        0.875f, 0.75f, 0.625f};
  constexpr int kLanes = 16;
  float largest = 0.0f;  // with its sign
  BATON_UNROLL
  for (int i = 0; i < kSliceInputs; ++i) {
    if (MagnitudeOf(weights[i]) > MagnitudeOf(largest)) largest = weights[i];
  }
  float best_scale = 0.0f;
  float best_error = BitsFloat(0x7f800000u);
  BATON_NO_UNROLL
  for (int step = 0; step < kStepCount; ++step) {
    const float scale =
        FromBf16(ToBf16(DivRn(largest, MulRn(-8.0f, kSteps[step]))));
    const float inverse = DivRn(1.0f, scale);
    if (scale == 0.0f || !(MagnitudeOf(inverse) <= kFloatMax)) continue;
    float sums[kLanes] = {};
    float sum = 0.0f;  // of what is no whole sixteen
    BATON_UNROLL
    for (int i = 0; i < kSliceInputs; ++i) {
      const float error = SubRn(
          weights[i], MulRn(RoundInt4(MulRn(weights[i], inverse)), scale));
      const float square = MulRn(error, error);
      if (i / kLanes * kLanes + kLanes <= count) {
        sums[i % kLanes] = AddRn(sums[i % kLanes], square);
      } else if (i < count) {
        sum = AddRn(sum, square);
      }
    }
    BATON_UNROLL
    for (int lane = 0; lane < kLanes; ++lane) sum = AddRn(sum, sums[lane]);
    if (best_scale == 0.0f || sum < best_error) {
      best_error = sum;
      best_scale = scale;
    }
  }
  return best_scale;
}

// An output and slice: 64 numbers of [0, 15], eight to a word; its scale's
// bits.
struct Int4Slice {
  uint32_t words[kSliceInputs / 8];
  uint16_t scale;
};

BATON_DEVICE Int4Slice MakeInt4Slice(const TileRows& tile, int32_t output,
                                     int32_t first) {
  float weights[kSliceInputs];
  bool finite = true;
  BATON_UNROLL
  for (int i = 0; i < kSliceInputs; ++i) {
    weights[i] = tile.At(output, first + i);
    finite = finite && MagnitudeOf(weights[i]) <= kFloatMax;
  }
  const int32_t left = tile.inputs - first;
  const int32_t count = left < kSliceInputs ? left : kSliceInputs;
  const float scale = finite ? Int4Scale(weights, count) : 0.0f;
  // As there: what has no scale is all ones, and what is not finite NaN.
  const bool constant = scale == 0.0f;
  const float inverse = constant ? 0.0f : DivRn(1.0f, scale);
  Int4Slice slice = {};
  slice.scale = finite ? ToBf16(scale) : uint16_t{0x7fc0};
  BATON_UNROLL
  for (int i = 0; i < kSliceInputs; ++i) {
    int32_t q = 0;
    if (i < count) {
      q = constant
              ? 1
              : static_cast<int32_t>(RoundInt4(MulRn(weights[i], inverse)));
    }
    slice.words[i / 8] |= static_cast<uint32_t>(q + 8) << i % 8 * 4;
  }
  return slice;
}

BATON_KERNEL(kPackThreads)
PackInt4(PackArgs args) {
  constexpr WeightFormat kFormat = WeightFormat::kInt4;
  AwaitEarlierKernels();
  const TileRows tile = RowsOfBlock(args);
  const int32_t padded = PaddedInputs(args.inputs);
  std::byte* const out =
      args.out + int64_t{BlockX()} * TileBytes(kFormat, padded);
  // A thread has the two outputs that share bytes, of a slice.
  for (int32_t unit = Thread(); unit < padded / kSliceInputs * 8;
       unit += Threads()) {
    const int32_t output = unit % 8;
    const int32_t first = unit / 8 * kSliceInputs;
    const Int4Slice low = MakeInt4Slice(tile, output, first);
    const Int4Slice high = MakeInt4Slice(tile, output + 8, first);
    BATON_UNROLL
    for (int i = 0; i < kSliceInputs; ++i) {
      const uint32_t shift = i % 8 * 4;
      out[PlaceOfWeight(kFormat, output, first + i, padded).byte] =
          static_cast<std::byte>((low.words[i / 8] >> shift & 15) |
                                 (high.words[i / 8] >> shift & 15) << 4);
    }
    uint16_t* const scales = reinterpret_cast<uint16_t*>(
        out + PlaceOfSliceScale(kFormat, output, first, padded));
    scales[0] = low.scale;
    scales[1] = high.scale;
  }
}

}  // namespace

void RunPackTiles(const PackArgs& args, StreamHandle* stream) {
  CHECK(IsWeightDType(args.type) ||
        (args.type == DType::kF8E4M3 && args.format == WeightFormat::kFp8))
      << DTypeName(args.type);
  CHECK(args.tiles > 0 && args.inputs > 0);
  CHECK_EQ(args.scales != nullptr, HasOutputScales(args.format));
  LaunchShape shape;
  shape.x = static_cast<uint32_t>(args.tiles);
  shape.threads = kPackThreads;
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
