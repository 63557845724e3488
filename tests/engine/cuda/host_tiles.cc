#include "tests/engine/cuda/host_tiles.h"

#include <algorithm>
#include <cstring>

#include "absl/types/span.h"
#include "engine/dtype.h"
#include "engine/float_convert.h"
#include "engine/quantize_weights.h"

namespace baton::engine::cuda {
namespace {

void PutBf16(std::byte* at, uint16_t bits) {
  std::memcpy(at, &bits, sizeof(bits));
}

// One tile, which is zero so far.
class TilePacker final {
 public:
  TilePacker(WeightFormat format, int32_t inputs, std::byte* tile)
      : format_(format), padded_(PaddedInputs(inputs)), tile_(tile) {}

  // Returns the output's scale where the format has one, else zero.
  float Pack(int32_t output, absl::Span<const float> weights) {
    const auto inputs = static_cast<int32_t>(weights.size());
    switch (format_) {
      case WeightFormat::kBf16:
        for (int32_t i = 0; i < inputs; ++i) {
          PutBf16(At(output, i), FloatToBf16(weights[i]));
        }
        return 0.0f;
      case WeightFormat::kFp8: {
        bytes_.resize(inputs);
        const float scale = QuantizeFp8(weights, bytes_.data());
        for (int32_t i = 0; i < inputs; ++i) {
          *At(output, i) = std::byte{bytes_[i]};
        }
        return scale;
      }
      case WeightFormat::kInt8: {
        integers_.resize(inputs);
        const float scale = QuantizeInt8(weights, integers_.data());
        for (int32_t i = 0; i < inputs; ++i) {
          *At(output, i) = static_cast<std::byte>(integers_[i]);
        }
        return scale;
      }
      case WeightFormat::kInt4:
        for (int32_t i = 0; i < padded_; i += kSliceInputs) {
          PackInt4Slice(output, i, weights);
        }
        return 0.0f;
    }
    return 0.0f;
  }

 private:
  std::byte* At(int32_t output, int32_t input) {
    return tile_ + PlaceOfWeight(format_, output, input, padded_).byte;
  }

  void PackInt4Slice(int32_t output, int32_t first,
                     absl::Span<const float> weights) {
    int8_t q[kSliceInputs] = {};  // zeros for what pads the inputs
    const int32_t count =
        std::min(kSliceInputs, static_cast<int32_t>(weights.size()) - first);
    const uint16_t scale = QuantizeInt4(weights.subspan(first, count), q);
    PutBf16(tile_ + PlaceOfSliceScale(format_, output, first, padded_), scale);
    for (int32_t i = 0; i < kSliceInputs; ++i) {
      const WeightPlace place =
          PlaceOfWeight(format_, output, first + i, padded_);
      tile_[place.byte] |= static_cast<std::byte>((q[i] + 8) << place.shift);
    }
  }

  const WeightFormat format_;
  const int32_t padded_;
  std::byte* const tile_;
  std::vector<uint8_t> bytes_;
  std::vector<int8_t> integers_;
};

}  // namespace

void PackTiles(WeightFormat format, const std::vector<OutputRows>& rows,
               int32_t inputs, int64_t first_tile, int64_t tiles,
               std::byte* out, float* scales) {
  const int64_t tile_bytes = TileBytes(format, PaddedInputs(inputs));
  std::fill_n(out, tiles * tile_bytes, std::byte{0});
  std::vector<OutputRows> padded = rows;
  padded.push_back({nullptr, 0, kTileOutputs});
  std::vector<float> values(int64_t{kTileOutputs} * inputs);
  for (int64_t tile = 0; tile < tiles; ++tile) {
    CopyOutputs(padded, DType::kF32, (first_tile + tile) * kTileOutputs,
                kTileOutputs, inputs,
                reinterpret_cast<std::byte*>(values.data()));
    TilePacker packer(format, inputs, out + tile * tile_bytes);
    for (int32_t o = 0; o < kTileOutputs; ++o) {
      const float scale = packer.Pack(
          o, absl::MakeConstSpan(values).subspan(int64_t{o} * inputs, inputs));
      if (HasOutputScales(format)) scales[tile * kTileOutputs + o] = scale;
    }
  }
}

}  // namespace baton::engine::cuda
