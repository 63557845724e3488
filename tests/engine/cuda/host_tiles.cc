#include "tests/engine/cuda/host_tiles.h"

#include <algorithm>
#include <cstring>

#include "absl/types/span.h"
#include "engine/dtype.h"
#include "engine/float_convert.h"
#include "engine/quantize_weights.h"

namespace baton::engine::cuda {
namespace {

void PutHalf(std::byte* at, uint16_t bits) {
  std::memcpy(at, &bits, sizeof(bits));
}

// One tile, which is zero so far.
class TilePacker final {
 public:
  TilePacker(WeightFormat format, int32_t inputs, std::byte* tile)
      : format_(format), padded_(PaddedInputs(inputs)), tile_(tile) {}

  // Returns the output's scale where the format has one, else zero. `grids` is
  // that of QuantizeInt4.
  float Pack(int32_t output, absl::Span<const float> weights,
             absl::Span<const Int4Grid> grids) {
    const auto inputs = static_cast<int32_t>(weights.size());
    switch (format_) {
      case WeightFormat::kBf16:
        for (int32_t i = 0; i < inputs; ++i) {
          PutHalf(At(output, i), FloatToBf16(weights[i]));
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
        return PackInt4(output, weights, grids);
    }
    return 0.0f;
  }

 private:
  std::byte* At(int32_t output, int32_t input) {
    return tile_ + PlaceOfWeight(format_, output, input, padded_).byte;
  }

  float PackInt4(int32_t output, absl::Span<const float> weights,
                 absl::Span<const Int4Grid> grids) {
    bytes_.assign(padded_, 0);
    std::vector<uint16_t> codes(padded_ / kSliceInputs);
    const float scale =
        QuantizeInt4(weights, grids, bytes_.data(), codes.data());
    for (int32_t i = 0; i < padded_; ++i) {
      const uint16_t code = codes[i / kSliceInputs];
      PutHalf(tile_ + PlaceOfSliceGrid(format_, output, i, padded_), code);
      const WeightPlace place = PlaceOfWeight(format_, output, i, padded_);
      // Nothing is what pads the inputs, too.
      const int32_t q =
          i < static_cast<int32_t>(weights.size()) ? bytes_[i] : Int4Zero(code);
      tile_[place.byte] |= static_cast<std::byte>(q << place.shift);
    }
    return scale;
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
  const int64_t slices = PaddedInputs(inputs) / kSliceInputs;
  std::vector<Int4Grid> grids(kTileOutputs * slices);
  for (int64_t tile = 0; tile < tiles; ++tile) {
    CopyOutputs(padded, DType::kF32, (first_tile + tile) * kTileOutputs,
                kTileOutputs, inputs,
                reinterpret_cast<std::byte*>(values.data()));
    CopyGrids(padded, (first_tile + tile) * kTileOutputs, kTileOutputs, inputs,
              grids.data());
    TilePacker packer(format, inputs, out + tile * tile_bytes);
    for (int32_t o = 0; o < kTileOutputs; ++o) {
      const float scale = packer.Pack(
          o, absl::MakeConstSpan(values).subspan(int64_t{o} * inputs, inputs),
          absl::MakeConstSpan(grids).subspan(o * slices, slices));
      if (HasOutputScales(format)) scales[tile * kTileOutputs + o] = scale;
    }
  }
}

}  // namespace baton::engine::cuda
