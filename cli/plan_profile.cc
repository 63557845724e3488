#include "cli/plan_profile.h"

#include "absl/strings/str_cat.h"
#include "cli/finite_range.h"
#include "common/output_file.h"
#include "common/status_macros.h"
#include "model_tools/model_costs.h"
#include "model_tools/model_shapes.h"
#include "planner/roofline.h"

namespace baton::cli {
namespace {

std::string GpuNames() {
  std::string names;
  for (const planner::Gpu& gpu : planner::KnownGpus()) {
    absl::StrAppend(&names, names.empty() ? "" : ", ", gpu.name);
  }
  return names;
}

absl::StatusOr<planner::ModelGeometry> GeometryOf(const ProfileFlags& flags) {
  engine::ModelConfig config;
  planner::ModelGeometry geometry;
  if (!flags.model.empty()) {
    BATON_ASSIGN_OR_RETURN(config, engine::LoadModelConfig(flags.model));
    geometry.name = flags.model;
  } else {
    BATON_ASSIGN_OR_RETURN(const model_tools::ModelShape shape,
                           model_tools::FindModelShape(flags.shape));
    config = shape.config;
    geometry.name = shape.name;
  }
  const model_tools::WeightKind kind =
      model_tools::ParseWeightKind(flags.weights)
          .value_or(model_tools::WeightKind::kBf16);
  geometry.layer_parameters =
      static_cast<double>(model_tools::LayerMatrixParameters(config));
  geometry.head_parameters =
      static_cast<double>(model_tools::HeadParameters(config));
  geometry.weight_bytes = model_tools::LayerMatrixBytes(config, kind) +
                          model_tools::HeadBytes(config, kind);
  if (flags.expert_streams > 0) {
    if (config.experts.count == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("--expert-streams: ", geometry.name, " has no experts"));
    }
    geometry.decode_bytes =
        model_tools::LayerBytesRead(config, kind, flags.expert_streams) +
        model_tools::HeadBytes(config, kind);
  }
  constexpr int32_t kBlockSize = 16;
  geometry.kv_bytes_per_token =
      model_tools::MakeKvLayout(config, engine::KvDtype::kBf16, kBlockSize,
                                /*num_blocks=*/1)
          .block_bytes() /
      kBlockSize;
  geometry.kv_on_each_gpu = config.IsLatent();
  geometry.num_layers = config.num_layers;
  // Of latent attention the mean of what is multiplied with keys and what comes
  // of their values.
  geometry.q_size =
      config.IsLatent()
          ? config.num_heads * (config.head_dim + config.latent.rank) / 2
          : config.num_heads * config.head_dim;
  geometry.max_context = config.max_position;
  return geometry;
}

absl::StatusOr<planner::ClusterProfile> FindProfile(const ProfileFlags& flags) {
  if (!flags.file.empty()) return planner::ReadProfile(flags.file);
  if (flags.gpu.empty()) {
    return absl::InvalidArgumentError(
        "what do workers cost? --profile FILE, or --gpu NAME with "
        "--model-shape NAME or --model DIR");
  }
  if (flags.shape.empty() == flags.model.empty()) {
    return absl::InvalidArgumentError(
        "--gpu: give one of --model-shape NAME and --model DIR");
  }
  BATON_ASSIGN_OR_RETURN(const planner::Gpu gpu, planner::FindGpu(flags.gpu));
  BATON_ASSIGN_OR_RETURN(const planner::ModelGeometry geometry,
                         GeometryOf(flags));
  return planner::RooflineProfile(
      gpu, geometry,
      {.gpus_per_worker = flags.gpus_per_worker,
       .compute_efficiency = flags.compute_efficiency,
       .memory_efficiency = flags.memory_efficiency});
}

}  // namespace

void AddProfileFlags(CLI::App* command, ProfileFlags* flags) {
  const char* kGroup = "What workers cost";
  CLI::Option* file =
      command
          ->add_option("--profile", flags->file,
                       "A file of costs, as `baton plan profile` writes it")
          ->group(kGroup);
  command
      ->add_option("--gpu", flags->gpu,
                   absl::StrCat("Estimate them for a GPU: ", GpuNames()))
      ->group(kGroup)
      ->excludes(file);
  command
      ->add_option("--model-shape", flags->shape,
                   "Of --gpu: a model that `baton synth --help` lists")
      ->group(kGroup);
  command
      ->add_option("--model", flags->model,
                   "Of --gpu: the directory of a model (its config.json)")
      ->group(kGroup);
  command->add_option("--weights", flags->weights, "Of --gpu: their kind")
      ->check(CLI::IsMember({"bf16", "fp8", "int8", "int4"}))
      ->group(kGroup)
      ->capture_default_str();
  command
      ->add_option("--gpus-per-worker", flags->gpus_per_worker,
                   "Of --gpu: tensor parallel")
      ->check(CLI::Range(1, 64))
      ->group(kGroup)
      ->capture_default_str();
  command
      ->add_option("--compute-efficiency", flags->compute_efficiency,
                   "Of --gpu: share of its operations that an engine attains")
      ->check(FiniteRange(0.01, 1.0))
      ->group(kGroup)
      ->capture_default_str();
  command
      ->add_option("--memory-efficiency", flags->memory_efficiency,
                   "Of --gpu: share of its bandwidth")
      ->check(FiniteRange(0.01, 1.0))
      ->group(kGroup)
      ->capture_default_str();
  command
      ->add_option("--expert-streams", flags->expert_streams,
                   "Of --gpu, mixtures of experts: decode steps read those of "
                   "so many streams; 0: all")
      ->check(CLI::Range(0, 100000))
      ->group(kGroup)
      ->capture_default_str();
  command
      ->add_option("--write-profile", flags->write,
                   "Write what is used, to change it by hand")
      ->group(kGroup);
}

absl::StatusOr<planner::ClusterProfile> MakeProfile(const ProfileFlags& flags) {
  BATON_ASSIGN_OR_RETURN(const planner::ClusterProfile profile,
                         FindProfile(flags));
  if (!flags.write.empty()) {
    BATON_RETURN_IF_ERROR(WriteTextFile(
        flags.write, absl::StrCat(ProfileJson(profile).dump(
                                      1, ' ', false,
                                      nlohmann::json::error_handler_t::replace),
                                  "\n")));
  }
  return profile;
}

}  // namespace baton::cli
