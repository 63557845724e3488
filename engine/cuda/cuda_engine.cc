#include "engine/cuda/cuda_engine.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "engine/cpu/packed_model.h"
#include "engine/cpu/thread_team.h"
#include "engine/cuda/attention.h"
#include "engine/cuda/weight_format.h"
#include "engine/model_identity.h"
#include "engine/plan_check.h"
#include "engine/quantize_weights.h"
#include "engine/weights.h"

namespace baton::engine::cuda {
namespace {

absl::Status CheckOptions(const EngineOptions& options) {
  if (options.weights != "auto" && !ParseWeightFormat(options.weights)) {
    return absl::UnimplementedError(
        absl::StrCat("weights: the cuda backend holds bf16, fp8, int8 or int4, "
                     "not ",
                     options.weights));
  }
  if (!ParseKvDtype(options.kv_dtype)) {
    return absl::UnimplementedError(
        absl::StrCat("kv_dtype: the cuda backend holds bf16, int8 or fp8, not ",
                     options.kv_dtype));
  }
  if (cpu::IsPackedModel(options.model_dir)) {
    return absl::UnimplementedError(
        absl::StrCat(options.model_dir,
                     ": its weights are packed for the cpu backend; take the "
                     "model that it was made from"));
  }
  return absl::OkStatus();
}

absl::Status CheckModel(const ModelConfig& config, const KvLayout& layout) {
  if (!IsAttentionHeadDim(layout.stored_head_dim())) {
    return absl::UnimplementedError(absl::StrCat(
        "head_dim: the cuda backend has no kernel for ", config.head_dim));
  }
  const int32_t group = config.num_heads / config.num_kv_heads;
  if (group > kTileQueries) {
    return absl::UnimplementedError(absl::StrCat(
        "num_key_value_heads: ", group,
        " heads share one; the cuda backend takes at most ", kTileQueries));
  }
  return absl::OkStatus();
}

// "cuda-sm90-int4-kv8": what bf16 does not name.
std::string BackendName(const DeviceProperties& device,
                        absl::string_view weights, KvDtype kv) {
  std::string name = absl::StrCat("cuda-sm", device.architecture);
  if (weights != WeightFormatName(WeightFormat::kBf16)) {
    absl::StrAppend(&name, "-", weights);
  }
  switch (kv) {
    case KvDtype::kBf16:
      break;
    case KvDtype::kInt8:
      absl::StrAppend(&name, "-kv8");
      break;
    case KvDtype::kFp8:
      absl::StrAppend(&name, "-kvfp8");
      break;
  }
  return name;
}

KvLayout BlockLayout(const ModelConfig& config, const EngineOptions& options) {
  KvLayout layout;
  layout.num_layers = config.num_layers;
  layout.block_size = options.block_size;
  layout.num_kv_heads = config.num_kv_heads;
  layout.head_dim = config.head_dim;
  layout.dtype = ParseKvDtype(options.kv_dtype).value();
  return layout;
}

// Sets the number of blocks. `option` says where the bytes come from.
absl::Status FillWithBlocks(int64_t bytes, const char* option,
                            KvLayout* layout) {
  const int64_t blocks = bytes / layout->block_bytes();
  if (blocks < 1) {
    return absl::ResourceExhaustedError(absl::StrCat(
        option, ": ", bytes, " is too small; one KV block of this model takes ",
        layout->block_bytes(), " bytes"));
  }
  layout->num_blocks = static_cast<int32_t>(
      std::min<int64_t>(blocks, std::numeric_limits<BlockId>::max()));
  return absl::OkStatus();
}

// Logs how far loading is, a line per second.
class LoadLog final {
 public:
  explicit LoadLog(std::string what) : what_(std::move(what)) {}
  void operator()(double share) {
    const auto now = std::chrono::steady_clock::now();
    if (now < next_ || share >= 1.0) return;
    next_ = now + std::chrono::seconds(1);
    LOG(INFO) << "loading " << what_ << ": " << static_cast<int>(100 * share)
              << " %";
  }

 private:
  const std::string what_;
  std::chrono::steady_clock::time_point next_ =
      std::chrono::steady_clock::now() + std::chrono::seconds(1);
};

double SecondsSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start)
      .count();
}

}  // namespace

absl::StatusOr<std::unique_ptr<CudaEngine>> CudaEngine::Create(
    const EngineOptions& options) {
  return Create(options, ForwardPassOptions());
}

absl::StatusOr<std::unique_ptr<CudaEngine>> CudaEngine::Create(
    const EngineOptions& options, const ForwardPassOptions& pass_options) {
  BATON_RETURN_IF_ERROR(CheckOptions(options));
  BATON_ASSIGN_OR_RETURN(const DeviceProperties device,
                         OpenDevice(kEngineDevice));
  BATON_ASSIGN_OR_RETURN(const ModelConfig config,
                         LoadModelConfig(options.model_dir));
  KvLayout layout = BlockLayout(config, options);
  BATON_RETURN_IF_ERROR(CheckModel(config, layout));
  BATON_ASSIGN_OR_RETURN(const ModelWeights files,
                         LoadModelWeights(options.model_dir, config));
  const WeightFormat format =
      ParseWeightFormat(options.weights).value_or(WeightFormat::kBf16);
  auto stream = std::make_unique<Stream>();
  const auto start = std::chrono::steady_clock::now();
  DeviceWeights weights;
  {
    cpu::ThreadTeam team(options.num_threads);
    LoadLog log(options.model_dir);
    BATON_ASSIGN_OR_RETURN(
        weights, LoadDeviceWeights(config, files, format, team, *stream,
                                   [&](double share) { log(share); }));
  }
  WeightsInfo info;
  info.dtype = std::string(WeightFormatName(format));
  info.bytes = weights.matrix_bytes;
  info.load_seconds = SecondsSince(start);

  if (options.kv_memory_share > 0) {
    const int64_t free = FreeDeviceBytes() -
                         ForwardPass::DeviceBytes(config, layout, pass_options);
    BATON_RETURN_IF_ERROR(FillWithBlocks(
        static_cast<int64_t>(options.kv_memory_share *
                             static_cast<double>(std::max<int64_t>(0, free))),
        "kv_memory_share", &layout));
  } else {
    BATON_RETURN_IF_ERROR(
        FillWithBlocks(options.kv_memory_bytes, "kv_memory_bytes", &layout));
  }
  BATON_ASSIGN_OR_RETURN(
      DeviceBuffer kv,
      DeviceBuffer::Allocate(layout.total_bytes(), "KV memory"));
  stream->Fill(kv.data(), 0, kv.bytes());
  std::unique_ptr<CudaEngine> engine(new CudaEngine(
      config, device,
      QuantizedIdentity(ModelIdentity(config, files), info.dtype), layout,
      std::move(stream), std::move(weights), info, std::move(kv)));
  BATON_ASSIGN_OR_RETURN(
      engine->forward_pass_,
      ForwardPass::Create(engine->config_, engine->weights_, engine->layout_,
                          engine->device_kv_memory(), *engine->stream_,
                          pass_options));
  if (options.kv_staging_bytes > 0) {
    BATON_ASSIGN_OR_RETURN(
        engine->stage_,
        DeviceKvStage::Create(engine->layout_, engine->device_kv_memory(),
                              *engine->stream_, options.kv_staging_bytes,
                              options.share_kv_memory));
    engine->forward_pass_->SetStage(engine->stage_.get());
  }
  return engine;
}

CudaEngine::CudaEngine(const ModelConfig& config,
                       const DeviceProperties& device, std::string identity,
                       const KvLayout& layout, std::unique_ptr<Stream> stream,
                       DeviceWeights weights, WeightsInfo weights_info,
                       DeviceBuffer kv)
    : config_(config),
      device_(device),
      identity_(std::move(identity)),
      backend_name_(BackendName(device, weights_info.dtype, layout.dtype)),
      layout_(layout),
      stream_(std::move(stream)),
      weights_(std::move(weights)),
      weights_info_(std::move(weights_info)),
      kv_(std::move(kv)) {}

scheduling::StepResult CudaEngine::Execute(const scheduling::StepPlan& plan,
                                           LayerHook on_layer_done) {
  CheckPlan(plan, config_, layout_);
  // The loop's thread need not be the one that loaded the model.
  UseDevice(kEngineDevice);
  return forward_pass_->Run(plan, on_layer_done);
}

}  // namespace baton::engine::cuda
