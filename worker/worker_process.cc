#include "worker/worker_process.h"

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include <CLI/CLI.hpp>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/mutex.h"
#include "common/command_line/completion.h"
#include "common/log.h"
#include "common/model_name.h"
#include "common/process/process.h"
#include "common/rpc/grpc_program.h"
#include "common/rpc/grpc_setup.h"
#include "common/status_macros.h"
#include "common/tls/pem_files.h"
#include "kv_transfer/transports/nccl/nccl_communicator.h"
#include "kv_transfer/transports/ucx/ucx_transport.h"
#include "proto/fingerprint.h"
#include "worker/calibration.h"
#include "worker/file_kv_store.h"
#include "worker/kv_encryption.h"
#include "worker/worker_health.h"
#include "worker/worker_side.h"

namespace baton::worker {
namespace {

// How often an idle loop looks at its deadlines.
constexpr absl::Duration kIdleWait = absl::Milliseconds(50);

// How long a drained worker goes on writing what is to be stored.
constexpr absl::Duration kFlush = absl::Seconds(2);

constexpr char kNcclTransport[] = "nccl";
// Multiprocessors that a peer's payloads take from the engine at most: four
// move several times what prefill makes of them (ADR 44).
constexpr int kNcclBlocks = 4;

// Where KV is that others reach: the engine's own memory, or staged blocks.
engine::StagedMemory Reached(engine::Engine* engine) {
  if (const engine::KvStage* const stage = engine->kv_stage();
      stage != nullptr) {
    return stage->staged();
  }
  return {.layout = engine->kv_layout(),
          .memory = engine->kv_memory(),
          .descriptor = engine->kv_descriptor()};
}

// "cpu-avx2-int4, weights int4 of 75.1 MB mapped in 0.01 s, KV bf16 of 4096
// blocks of 16 tokens".
std::string DescribeEngine(const engine::Engine& engine) {
  const engine::WeightsInfo weights = engine.weights_info();
  const engine::KvLayout& kv = engine.kv_layout();
  std::string text = absl::StrFormat(
      "%s, weights %s of %.1f MB %s in %.2f s, KV %s of %d blocks of %d tokens",
      engine.backend_name(), weights.dtype, weights.bytes / 1e6,
      weights.mapped ? "mapped" : "packed", weights.load_seconds,
      engine::KvDtypeName(kv.dtype), kv.num_blocks, kv.block_size);
  const char* separator = ", adapters ";
  for (const engine::AdapterInfo& adapter : engine.adapters()) {
    absl::StrAppendFormat(&text, "%s%s of rank %d",
                          std::exchange(separator, ", "), adapter.name,
                          adapter.rank);
  }
  return text;
}

// Runs the loop until a signal has drained it.
void RunUntilSignal(WorkerLoop* loop, WorkerHealth* health) {
  std::thread signals([loop, health] {
    const int signal = process::WaitForSignal();
    LOG(INFO) << "signal " << signal << ": draining";
    health->Drain();
    loop->RequestDrain();
  });
  loop->Run(
      [health](const LoopProgress& progress) { health->Turned(progress); });
  signals.join();
}

// Of --cluster-tls; null without it.
absl::StatusOr<std::shared_ptr<tls::PemFiles>> OpenClusterTls(
    const WorkerOptions& options) {
  if (options.cluster_tls.empty()) return nullptr;
  absl::StatusOr<std::shared_ptr<tls::PemFiles>> files =
      tls::PemFiles::Open(tls::ClusterPaths(options.cluster_tls));
  if (files.ok()) return files;
  return absl::Status(
      files.status().code(),
      absl::StrCat("--cluster-tls: ", files.status().message()));
}

// The labels of all metrics; of a dual worker, each side adds its role.
metrics::Labels LabelsOf(const WorkerOptions& options,
                         const WorkerProgram& program) {
  metrics::Labels labels = {
      {"worker", options.name},
      {"model_name", ModelName(options.engine.model_dir)}};
  if (!program.dual()) labels["role"] = RoleLabel(program.roles.front());
  return labels;
}

// With another transport than NCCL.
absl::Status CheckStagesOnDevice(const WorkerOptions& options,
                                 const WorkerProgram& program) {
  if (options.engine.backend != "cuda") {
    return absl::InvalidArgumentError(
        absl::StrCat("--kv-staging device needs --device cuda, not ",
                     options.engine.backend));
  }
  if (options.transport != "ucx") {
    return absl::InvalidArgumentError(
        absl::StrCat("--kv-staging device needs --transport nccl or ucx, not ",
                     options.transport));
  }
  if (options.kv_wire != "exact") {
    return absl::InvalidArgumentError(absl::StrCat(
        "--kv-wire ", options.kv_wire, " needs --kv-staging host"));
  }
  const absl::Status status =
      kv_transfer::CheckUcx(options.ucx_tls, program.device_memory);
  if (status.ok()) return status;
  return absl::Status(status.code(),
                      absl::StrCat("--kv-staging device: ", status.message()));
}

// That flags go together, and that there is what the transport needs, before
// the model is loaded.
absl::Status CheckOptions(const WorkerOptions& options,
                          const WorkerProgram& program) {
  if (options.transport == kNcclTransport) {
    if (options.engine.backend != "cuda") {
      return absl::InvalidArgumentError(
          absl::StrCat("--transport nccl needs --device cuda, not ",
                       options.engine.backend));
    }
    if (options.kv_staging == "host") {
      return absl::InvalidArgumentError(
          "--kv-staging host needs another --transport than nccl");
    }
    if (options.kv_wire != "exact") {
      return absl::InvalidArgumentError(
          absl::StrCat("--kv-wire ", options.kv_wire,
                       " needs another --transport than nccl"));
    }
    const auto communicators = program.make_communicators();
    if (!communicators.ok()) {
      return absl::Status(
          communicators.status().code(),
          absl::StrCat("--transport nccl: ", communicators.status().message()));
    }
  } else if (StagesOnDevice(options)) {
    BATON_RETURN_IF_ERROR(CheckStagesOnDevice(options, program));
  }
  if (options.kv_offload_bytes > 0) {
    if (!options.prefix_cache) {
      return absl::InvalidArgumentError("--kv-offload needs --prefix-cache on");
    }
    if (StagesOnDevice(options)) {
      return absl::InvalidArgumentError("--kv-offload needs --kv-staging host");
    }
  } else if (!options.kv_offload_dir.empty()) {
    return absl::InvalidArgumentError(
        "--kv-offload-dir needs --kv-offload, its size");
  }
  if (!options.engine.draft_weights.empty() && options.draft_tokens == 0) {
    return absl::InvalidArgumentError(
        "--draft-weights needs --draft-tokens, how many guesses to check");
  }
  if (options.kv_wire != "exact" && options.engine.kv_dtype != "bf16") {
    return absl::InvalidArgumentError(
        absl::StrCat("--kv-wire ", options.kv_wire, " needs --kv-dtype bf16, ",
                     "not ", options.engine.kv_dtype));
  }
  return absl::OkStatus();
}

// "prefill", "decode" or "dual".
const char* KindOf(const WorkerProgram& program) {
  return program.dual() ? "dual" : RoleLabel(program.roles.front());
}

// Of --kv-offload.
absl::StatusOr<std::unique_ptr<FileKvStore>> OpenStore(
    const WorkerOptions& options, const WorkerProgram& program,
    engine::Engine* engine) {
  const engine::StagedMemory reached = Reached(engine);
  FileKvStoreOptions store = {
      .bytes = options.kv_offload_bytes,
      .directory = options.kv_offload_dir,
      .kind = KindOf(program),
      // Another version may compute otherwise, in the last bits.
      .identity = absl::StrCat(
          engine->model_identity(), " ", engine->backend_name(),
          " pages=", proto::kPeerProtocolVersion, " baton=" BATON_VERSION),
      .layout = reached.layout,
      .memory = reached.memory};
  auto opened = FileKvStore::Open(store);
  if (opened.ok()) return opened;
  return absl::Status(
      opened.status().code(),
      absl::StrCat(options.kv_offload_dir.empty() ? "--kv-offload: "
                                                  : "--kv-offload-dir: ",
                   opened.status().message()));
}

absl::Status Serve(const WorkerOptions& options, const WorkerProgram& program) {
  BATON_RETURN_IF_ERROR(CheckOptions(options, program));
  BATON_ASSIGN_OR_RETURN(const std::shared_ptr<tls::PemFiles> tls,
                         OpenClusterTls(options));
  BATON_ASSIGN_OR_RETURN(const kv_transfer::TcpTls kv_tls,
                         KvEncryption(options, tls, std::getenv("UCX_TLS")));
  engine::EngineOptions engine_options = options.engine;
  // Decode workers only take KV in, and are fastest with memory of their own.
  engine_options.share_kv_memory =
      program.roles.front() == v1::WORKER_ROLE_PREFILL &&
      (options.transport == "local" || options.transport == "auto");
  engine_options.kv_staging_on_device = StagesOnDevice(options);
  engine_options.adapters_may_come = !options.adapter_dir.empty();
  if (program.dual() || program.roles.front() == v1::WORKER_ROLE_DECODE) {
    engine_options.decode_rows_at_start = options.max_sequences;
    engine_options.drafts_at_start = options.draft_tokens;
  } else {
    engine_options.draft_weights.clear();
  }
  BATON_ASSIGN_OR_RETURN(const std::unique_ptr<engine::Engine> engine,
                         program.make_engine(engine_options));
  // Outlives the server that shows it.
  WorkerHealth health(Clock::Monotonic());
  metrics::Metrics registry(LabelsOf(options, program));
  registry.AddNames(options.metrics_compat);
  registry.AddPage("/healthz", [&health] { return health.Liveness(); });
  registry.AddPage("/readyz", [&health] { return health.Readiness(); });

  std::optional<RoleSwitch> roles;
  const auto num_loops = static_cast<int32_t>(program.roles.size());
  const auto blocks =
      std::make_shared<KvBlocks>(engine.get(), options.prefix_cache, num_loops);
  // Of both sides of a dual worker.
  std::optional<metrics::Metrics> mixed;
  if (program.dual()) {
    mixed.emplace(registry, metrics::Labels{{"role", "mixed"}});
  }
  metrics::Metrics* const shared = mixed.has_value() ? &*mixed : &registry;
  FileKvStore* store = nullptr;  // its
  std::optional<OffloadMetrics> offload_metrics;
  if (options.kv_offload_bytes > 0) {
    BATON_ASSIGN_OR_RETURN(auto opened,
                           OpenStore(options, program, engine.get()));
    store = opened.get();
    blocks->AddOffload(std::move(opened),
                       {.engine = engine.get(), .clock = Clock::Monotonic()},
                       num_loops);
    offload_metrics.emplace(shared);
    blocks->observe_offload = [&](const KvOffload& offload) {
      offload_metrics->Observe(offload);
    };
    LOG(INFO) << "KV offload of " << blocks->offload->capacity_bytes() / 1e6
              << " MB in " << (store->path().empty() ? "memory" : store->path())
              << ", " << blocks->offload->stored_bytes() / 1e6 << " MB found";
  }
  std::unique_ptr<AdapterFolder> folder;
  if (!options.adapter_dir.empty()) {
    BATON_ASSIGN_OR_RETURN(
        folder, AdapterFolder::Open({.dir = options.adapter_dir}, engine.get(),
                                    shared));
  }
  const auto adapters =
      std::make_shared<AdapterTable>(engine.get(), std::move(folder), shared);
  // What is there already is in the hello.
  adapters->Update();
  uint64_t process = 0;
  if (program.dual()) {
    roles.emplace(options.first_role == "prefill" ? v1::WORKER_ROLE_PREFILL
                                                  : v1::WORKER_ROLE_DECODE,
                  &registry, Clock::Monotonic());
    process = static_cast<uint64_t>(process::DrawIncarnation());
  }
  const scheduling::StepCostModel step_cost = Calibrate(
      {.token_budget = options.token_budget}, engine.get(), Clock::Monotonic());
  // The loop waits where news of the last side come; the others wake it.
  std::deque<metrics::Metrics> labelled;
  std::vector<std::unique_ptr<WorkerSide>> sides(program.roles.size());
  engine::KvStage* const stage = engine->kv_stage();
  const absl::Cleanup first_to_last = [&sides, stage, store, adapters] {
    adapters->SetWake(nullptr);
    if (store != nullptr) store->SetWake(nullptr);
    if (stage != nullptr) stage->SetWake(nullptr);
    for (const auto& side : sides) {
      if (side != nullptr) side->Shutdown();
    }
    for (auto& side : sides) side.reset();
  };
  for (size_t i = sides.size(); i-- > 0;) {
    const v1::WorkerRole role = program.roles[i];
    metrics::Metrics* metrics = &registry;
    std::function<void()> notify;
    if (program.dual()) {
      metrics = &labelled.emplace_back(
          registry, metrics::Labels{{"role", RoleLabel(role)}});
    }
    if (sides.back() != nullptr) {
      notify = [inbox = sides.back()->parts().inbox] { inbox->Wake(); };
    }
    BATON_ASSIGN_OR_RETURN(
        sides[i],
        WorkerSide::Open(options, program, role, process, engine.get(), metrics,
                         kv_tls, std::move(notify)));
    sides[i]->parts().step_cost = step_cost;
    sides[i]->parts().handoff.ticked = health.AddDataPlane();
    sides[i]->parts().blocks = blocks;
    sides[i]->parts().adapters = adapters;
    sides[i]->parts().roles = roles.has_value() ? &*roles : nullptr;
  }
  if (store != nullptr) {
    store->SetWake([inbox = sides.back()->parts().inbox] { inbox->Wake(); });
  }
  adapters->SetWake([inbox = sides.back()->parts().inbox] { inbox->Wake(); });
  if (stage != nullptr) {
    stage->SetWake([inbox = sides.back()->parts().inbox] { inbox->Wake(); });
  }
  std::vector<WorkerParts> parts;
  for (const auto& side : sides) parts.push_back(side->parts());
  BATON_ASSIGN_OR_RETURN(const std::unique_ptr<WorkerLoop> loop,
                         program.make_loop(options, parts));
  BATON_ASSIGN_OR_RETURN(const int metrics_port,
                         registry.Serve(options.metrics));
  std::vector<std::string> grpc;
  for (size_t i = 0; i < sides.size(); ++i) {
    BATON_ASSIGN_OR_RETURN(
        grpc.emplace_back(),
        sides[i]->Serve(i == 0 ? options.listen : options.listen_decode, tls));
  }
  const std::string metrics_address =
      rpc::WithPort(options.metrics, metrics_port);
  const std::string& data = sides.back()->data_address();
  LOG(INFO) << program.name << " " << options.name << ": "
            << DescribeEngine(*engine) << ", gRPC "
            << absl::StrJoin(grpc, " and ")
            << (tls == nullptr ? " (plain text: no --cluster-tls)" : " (TLS)")
            << ", data " << (data.empty() ? "(connects)" : data) << " by "
            << sides.back()->data_transport() << ", metrics " << metrics_address
            << (program.dual() ? absl::StrCat(", role ", options.first_role)
                               : "");
  LOG_IF(WARNING, !data.empty() && !kv_tls.is_required() &&
                      options.transport != "local" &&
                      !rpc::IsLoopback(options.data_host))
      << "KV comes to " << data
      << " in plain text, from whoever can reach it: --kv-encryption";
  std::map<std::string, std::string> ready = {{"name", options.name},
                                              {"grpc", grpc.front()},
                                              {"data", data},
                                              {"metrics", metrics_address}};
  if (program.dual()) ready["grpc_decode"] = grpc.back();
  process::ReportReady(options.ready_fd, ready);
  health.Serve();
  RunUntilSignal(loop.get(), &health);
  if (store != nullptr && !store->path().empty()) {
    blocks->offload->Flush(Clock::Monotonic()->Now() + kFlush);
  }
  for (const auto& side : sides) side->Shutdown();
  LOG(INFO) << "drained";
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<kv_transfer::Communicators>>
CreateDeviceCommunicators() {
  return kv_transfer::CreateNcclCommunicators({.max_blocks = kNcclBlocks});
}

void WorkerLoop::Run(
    const std::function<void(const LoopProgress&)>& after_turn) {
  while (Turn(kIdleWait)) {
    if (after_turn) after_turn(progress());
  }
}

kv_transfer::KvGeometry Geometry(engine::Engine* engine,
                                 kv_transfer::PageHasher* hasher) {
  const engine::StagedMemory reached = Reached(engine);
  const engine::KvLayout& layout = reached.layout;
  kv_transfer::KvGeometry geometry;
  geometry.memory = reached.memory;
  geometry.descriptor = reached.descriptor;
  CHECK_EQ(reached.on_device, hasher != nullptr);
  geometry.hasher = hasher;
  geometry.spare = reached.spare;
  geometry.num_layers = layout.num_layers;
  geometry.layer_stride_bytes = layout.layer_bytes();
  geometry.page_bytes = layout.page_bytes();
  geometry.num_blocks = layout.num_blocks;
  geometry.bf16 = layout.dtype == engine::KvDtype::kBf16;
  const int64_t element = layout.element_bytes();
  const int32_t dim = layout.stored_head_dim();
  // For every 16 tokens, as kv_layout.h says.
  const kv_transfer::PageSection keys{1, 16 * dim * element};
  const kv_transfer::PageSection values{dim / 16, 16 * 16 * element};
  const kv_transfer::PageSection scales{1, 16 * sizeof(float)};
  geometry.sections = {keys};
  if (layout.has_scales()) geometry.sections.push_back(scales);
  if (!layout.shares_values()) {
    geometry.sections.push_back(values);
    if (layout.has_scales()) geometry.sections.push_back(scales);
  }
  return geometry;
}

int RunWorker(int argc, char** argv, const WorkerProgram& program) {
  const rpc::GrpcProgram grpc;
  kv_transfer::PrepareUcxEnvironment();
  const char* kind = KindOf(program);
  WorkerOptions options;
  options.name = absl::StrCat(kind, "-0");
  CLI::App app(absl::StrCat("Baton ", kind, " worker"), program.name);
  app.set_version_flag("--version",
                       absl::StrCat(program.name, " ", BATON_VERSION));
  command_line::AddCompletionFlag(&app);
  AddFlags(&app, &options);
  if (program.dual()) AddDualFlags(&app, &options);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : 2;
  }
  if (options.listen_decode.empty()) {
    options.listen_decode = rpc::WithPort(options.listen, 0);
  }
  InitLogging({.program = program.name,
               .name = options.name,
               .format = LogFormats().at(options.log_format)});
  process::SetUpSignals(options.die_with_parent);
  const absl::Status status = Serve(options, program);
  if (!status.ok()) {
    std::fprintf(stderr, "%s: %s\n", program.name,
                 std::string(status.message()).c_str());
    return 1;
  }
  return 0;
}

}  // namespace baton::worker
