#include "engine/cuda/device_loras.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>

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

// Appends to an image.
class ImageWriter {
 public:
  explicit ImageWriter(std::vector<std::byte>* image) : image_(image) {}

  // Rows [first, first + count) of `matrix`, `stride` elements apart, and zeros
  // up to `rows` of them: where they begin.
  int64_t Put(const WeightMatrix& matrix, int64_t first, int64_t count,
              int64_t rows, int64_t stride) {
    const auto at = static_cast<int64_t>(image_->size());
    const int64_t bytes = rows * stride * int64_t{sizeof(uint16_t)};
    image_->resize(at + (bytes + kAlignment - 1) / kAlignment * kAlignment);
    auto* const out = reinterpret_cast<uint16_t*>(image_->data() + at);
    std::vector<float> row(matrix.columns);
    for (int64_t i = 0; i < count; ++i) {
      ReadRow(matrix, first + i, absl::MakeSpan(row));
      for (size_t k = 0; k < row.size(); ++k) {
        out[i * stride + static_cast<int64_t>(k)] = FloatToBf16(row[k]);
      }
    }
    return at;
  }

 private:
  std::vector<std::byte>* const image_;
};

// Whether anything may be added to matrices that read `input`.
bool HasTargets(const ModelConfig& config, int32_t layer, LoraInput input) {
  const absl::Span<const LoraTarget> targets = TargetsOf(input);
  return std::any_of(targets.begin(), targets.end(), [&](LoraTarget target) {
    return LoraShapeOf(config, layer, target).has_value();
  });
}

bool AddsTo(const LoraAdapter& adapter, int32_t layer, LoraInput input) {
  const absl::Span<const LoraTarget> targets = TargetsOf(input);
  return std::any_of(targets.begin(), targets.end(), [&](LoraTarget target) {
    return adapter.layers[layer].of(target).has_value();
  });
}

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

int32_t PaddedLoraRank(int32_t rank) {
  return (rank + kLoraRankUnit - 1) / kLoraRankUnit * kLoraRankUnit;
}

HostLora MakeHostLora(const LoraAdapter& adapter, const ModelConfig& config,
                      const Shard& shard, int32_t rank) {
  CHECK_LE(adapter.rank, rank);
  HostLora lora;
  lora.layers.resize(config.num_layers);
  ImageWriter writer(&lora.image);
  for (int32_t layer = 0; layer < config.num_layers; ++layer) {
    for (int i = 0; i < kNumLoraInputs; ++i) {
      const absl::Span<const LoraTarget> targets = TargetsOf(LoraInput{i});
      for (size_t part = 0; part < targets.size(); ++part) {
        const LoraTarget target = targets[part];
        const std::optional<LoraPair>& pair = adapter.layers[layer].of(target);
        if (!pair.has_value()) continue;
        HostLora::Part put;
        put.target = static_cast<int32_t>(part);
        put.a = writer.Put(pair->a, 0, pair->a.rows, rank,
                           PaddedInputs(static_cast<int32_t>(pair->a.columns)));
        const int32_t outputs = LoraOutputs(config, shard, target);
        put.b = writer.Put(pair->b, FirstOutput(config, shard, target), outputs,
                           outputs, rank);
        put.scale = static_cast<float>(pair->scale);
        lora.layers[layer][i].push_back(put);
      }
    }
  }
  return lora;
}

absl::Status PutDeviceLora(const HostLora& lora, int32_t place, Stream& stream,
                           DeviceLoras* loras) {
  BATON_ASSIGN_OR_RETURN(
      DeviceBuffer memory,
      DeviceBuffer::Allocate(static_cast<int64_t>(lora.image.size()),
                             "an adapter"));
  stream.CopyToDevice(memory.data(), lora.image.data(),
                      static_cast<int64_t>(lora.image.size()));
  // Until the copies are done.
  std::vector<LoraEntry> entries;
  entries.reserve(lora.layers.size() * kNumLoraInputs);
  for (size_t layer = 0; layer < lora.layers.size(); ++layer) {
    for (int i = 0; i < kNumLoraInputs; ++i) {
      LoraEntry* const table = loras->layers[layer][i];
      const std::vector<HostLora::Part>& parts = lora.layers[layer][i];
      if (table == nullptr) {
        CHECK(parts.empty());
        continue;
      }
      LoraEntry& entry = entries.emplace_back();
      for (const HostLora::Part& part : parts) {
        entry.parts[part.target] = {
            reinterpret_cast<const uint16_t*>(memory.data() + part.a),
            reinterpret_cast<const uint16_t*>(memory.data() + part.b),
            part.scale};
      }
      stream.CopyToDevice(reinterpret_cast<std::byte*>(table + place), &entry,
                          int64_t{sizeof(LoraEntry)});
    }
  }
  stream.Wait();
  loras->memory[place] = std::move(memory);
  return absl::OkStatus();
}

absl::StatusOr<DeviceLoras> LoadDeviceLoras(
    absl::Span<const LoraAdapter> adapters, int32_t places, int32_t rank,
    bool may_come, const ModelConfig& config, const Shard& shard,
    Stream& stream) {
  DeviceLoras out;
  if (places == 0) return out;
  CHECK_GE(places, static_cast<int32_t>(adapters.size()));
  out.rank = rank;
  out.layers.resize(config.num_layers);
  out.memory.resize(places);
  const auto has_table = [&](int32_t layer, LoraInput input) {
    return may_come ? HasTargets(config, layer, input)
                    : std::any_of(adapters.begin(), adapters.end(),
                                  [&](const LoraAdapter& adapter) {
                                    return AddsTo(adapter, layer, input);
                                  });
  };
  int64_t tables = 0;
  for (int32_t layer = 0; layer < config.num_layers; ++layer) {
    for (int i = 0; i < kNumLoraInputs; ++i) {
      tables += has_table(layer, LoraInput{i});
    }
  }
  const int64_t bytes = tables * places * int64_t{sizeof(LoraEntry)};
  BATON_ASSIGN_OR_RETURN(out.tables,
                         DeviceBuffer::Allocate(bytes, "tables of adapters"));
  if (bytes > 0) stream.Fill(out.tables.data(), 0, bytes);
  auto* next = out.tables.as<LoraEntry>();
  for (int32_t layer = 0; layer < config.num_layers; ++layer) {
    for (int i = 0; i < kNumLoraInputs; ++i) {
      out.layers[layer][i] = nullptr;
      if (!has_table(layer, LoraInput{i})) continue;
      out.layers[layer][i] = next;
      next += places;
    }
  }
  for (size_t i = 0; i < adapters.size(); ++i) {
    BATON_RETURN_IF_ERROR(
        PutDeviceLora(MakeHostLora(adapters[i], config, shard, rank),
                      static_cast<int32_t>(i), stream, &out));
  }
  stream.Wait();
  return out;
}

}  // namespace baton::engine::cuda
