#include "engine/cuda/device_loras.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <optional>
#include <string>

#include "common/log.h"
#include "common/status_macros.h"
#include "engine/float_convert.h"
#include "engine/weight_matrix.h"

namespace baton::engine::cuda {
namespace {

static_assert(kLoraParts == kMaxLoraParts);

// Of the device's arrays.
constexpr int64_t kAlignment = 256;

// Which of a matrix's rows a rank has of a target.
int64_t FirstOutput(const ModelConfig& config, const Shard& shard,
                    LoraTarget target) {
  const bool whole = target == LoraTarget::kO || target == LoraTarget::kDown;
  return whole ? 0 : int64_t{shard.rank} * LoraOutputs(config, shard, target);
}

// Collects what goes to the device: first all sizes, then, with memory, all
// values.
class Image {
 public:
  // Begins to write, to what will lie at `device`.
  void Begin(std::byte* device) {
    device_ = device;
    host_.assign(size_, std::byte{0});
    size_ = 0;
  }
  bool writing() const { return device_ != nullptr; }
  int64_t size() const { return size_; }
  const std::byte* data() const { return host_.data(); }

  // A place for `count` values: where they are written, if they are, and where
  // they will lie.
  template <typename T>
  struct Place {
    T* host = nullptr;
    const T* device = nullptr;
  };
  template <typename T>
  Place<T> Take(int64_t count) {
    const int64_t at = size_;
    size_ +=
        (count * int64_t{sizeof(T)} + kAlignment - 1) / kAlignment * kAlignment;
    if (!writing()) return {};
    return {reinterpret_cast<T*>(host_.data() + at),
            reinterpret_cast<const T*>(device_ + at)};
  }

 private:
  int64_t size_ = 0;
  std::byte* device_ = nullptr;
  std::vector<std::byte> host_;
};

class LoraWriter {
 public:
  LoraWriter(absl::Span<const LoraAdapter> adapters, const ModelConfig& config,
             const Shard& shard, int32_t rank)
      : adapters_(adapters), config_(config), shard_(shard), rank_(rank) {}

  // Everything, in the same order each time.
  void Put(Image* image, DeviceLoras* out) const {
    for (int32_t layer = 0; layer < config_.num_layers; ++layer) {
      for (int i = 0; i < kNumLoraInputs; ++i) {
        out->layers[layer][i] = PutInput(layer, LoraInput{i}, image);
      }
    }
  }

 private:
  const LoraEntry* PutInput(int32_t layer, LoraInput input,
                            Image* image) const {
    const absl::Span<const LoraTarget> targets = TargetsOf(input);
    const auto pair_of =
        [&](const LoraAdapter& adapter,
            LoraTarget target) -> const std::optional<LoraPair>& {
      return adapter.layers[layer].of(target);
    };
    const bool any = std::any_of(
        adapters_.begin(), adapters_.end(), [&](const LoraAdapter& adapter) {
          return std::any_of(targets.begin(), targets.end(),
                             [&](LoraTarget target) {
                               return pair_of(adapter, target).has_value();
                             });
        });
    if (!any) return nullptr;
    const auto entries =
        image->Take<LoraEntry>(static_cast<int64_t>(adapters_.size()));
    for (size_t a = 0; a < adapters_.size(); ++a) {
      for (size_t part = 0; part < targets.size(); ++part) {
        const std::optional<LoraPair>& pair =
            pair_of(adapters_[a], targets[part]);
        if (!pair.has_value()) continue;
        const LoraPart put = PutPair(*pair, targets[part], image);
        if (image->writing()) entries.host[a].parts[part] = put;
      }
    }
    return entries.device;
  }

  LoraPart PutPair(const LoraPair& pair, LoraTarget target,
                   Image* image) const {
    const int64_t padded = PaddedInputs(static_cast<int32_t>(pair.a.columns));
    const auto a = image->Take<uint16_t>(rank_ * padded);
    const int32_t outputs = LoraOutputs(config_, shard_, target);
    const auto b = image->Take<uint16_t>(int64_t{outputs} * rank_);
    if (image->writing()) {
      Write(pair.a, 0, pair.a.rows, padded, a.host);
      Write(pair.b, FirstOutput(config_, shard_, target), outputs, rank_,
            b.host);
    }
    return {a.device, b.device, static_cast<float>(pair.scale)};
  }

  // Rows [first, first + count), `stride` elements apart.
  static void Write(const WeightMatrix& matrix, int64_t first, int64_t count,
                    int64_t stride, uint16_t* out) {
    std::vector<float> row(matrix.columns);
    for (int64_t i = 0; i < count; ++i) {
      ReadRow(matrix, first + i, absl::MakeSpan(row));
      for (size_t k = 0; k < row.size(); ++k) {
        out[i * stride + k] = FloatToBf16(row[k]);
      }
    }
  }

  const absl::Span<const LoraAdapter> adapters_;
  const ModelConfig& config_;
  const Shard& shard_;
  const int32_t rank_;
};

}  // namespace

int32_t LoraOutputs(const ModelConfig& config, const Shard& shard,
                    LoraTarget target) {
  switch (target) {
    case LoraTarget::kQ:
      return shard.Heads(config) * config.head_dim;
    case LoraTarget::kK:
    case LoraTarget::kV:
      return shard.KvHeads(config) * config.head_dim;
    case LoraTarget::kO:
    case LoraTarget::kDown:
      return config.hidden_size;
    case LoraTarget::kGate:
    case LoraTarget::kUp:
      return shard.Intermediate(config);
  }
  return 0;
}

absl::StatusOr<DeviceLoras> LoadDeviceLoras(
    absl::Span<const LoraAdapter> adapters, const ModelConfig& config,
    const Shard& shard, Stream& stream) {
  DeviceLoras out;
  if (adapters.empty()) return out;
  for (const LoraAdapter& adapter : adapters) {
    out.rank = std::max(out.rank, adapter.rank);
  }
  out.rank = (out.rank + kLoraRankUnit - 1) / kLoraRankUnit * kLoraRankUnit;
  out.layers.resize(config.num_layers);
  const LoraWriter writer(adapters, config, shard, out.rank);
  Image image;
  writer.Put(&image, &out);
  BATON_ASSIGN_OR_RETURN(out.memory,
                         DeviceBuffer::Allocate(image.size(), "adapters"));
  image.Begin(out.memory.data());
  writer.Put(&image, &out);
  stream.CopyToDevice(out.memory.data(), image.data(), image.size());
  stream.Wait();
  return out;
}

}  // namespace baton::engine::cuda
