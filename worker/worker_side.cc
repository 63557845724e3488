#include "worker/worker_side.h"

#include <utility>

#include "absl/time/time.h"
#include "common/clock.h"
#include "common/status_macros.h"
#include "kv_transfer/transports/host_aware/create_transport.h"
#include "kv_transfer/wire_encoding.h"
#include "worker/staged_page_hasher.h"
#include "worker/worker_hello.h"

namespace baton::worker {
namespace {

// Assignments that wait for the loop's next turn.
constexpr size_t kInboxCapacity = 4096;

// A data connection that gives nothing back for so long is closed and made
// anew. Longer than a worker that stops is unnoticed by its router.
constexpr absl::Duration kStallTimeout = absl::Seconds(2);

absl::StatusOr<std::unique_ptr<kv_transfer::Transport>> MakeTransport(
    const WorkerOptions& options, const WorkerProgram& program,
    v1::WorkerRole role, const kv_transfer::TcpTls& kv_tls,
    engine::KvStage* stage) {
  kv_transfer::UcxOptions ucx;
  ucx.listen = role == v1::WORKER_ROLE_DECODE;
  ucx.listen_host = options.data_host;
  ucx.port = static_cast<uint16_t>(options.data_port);
  ucx.tls = options.ucx_tls;
  if (stage != nullptr && stage->staged().on_device &&
      options.transport == "ucx") {
    ucx.memory = program.device_memory;
    ucx.select_device = [stage] { stage->SelectDevice(); };
  }
  return kv_transfer::CreateTransport(options.transport, ucx,
                                      program.make_communicators, kv_tls);
}

std::unique_ptr<kv_transfer::PageHasher> MakeHasher(engine::Engine* engine) {
  engine::KvStage* const stage = engine->kv_stage();
  if (stage == nullptr || !stage->staged().on_device) return nullptr;
  return std::make_unique<StagedPageHasher>(stage);
}

v1::WorkerHello Hello(const WorkerOptions& options, const v1::PeerHello& self,
                      const engine::Engine& engine,
                      const std::string& data_address, uint64_t process) {
  v1::WorkerHello hello = MakeWorkerHello(options, self, engine, data_address,
                                          /*num_loops=*/process == 0 ? 1 : 2);
  hello.set_process(process);
  return hello;
}

}  // namespace

absl::StatusOr<std::unique_ptr<WorkerSide>> WorkerSide::Open(
    const WorkerOptions& options, const WorkerProgram& program,
    v1::WorkerRole role, uint64_t process, engine::Engine* engine,
    metrics::Metrics* metrics, const kv_transfer::TcpTls& kv_tls,
    std::function<void()> notify) {
  BATON_ASSIGN_OR_RETURN(
      std::unique_ptr<kv_transfer::Transport> transport,
      MakeTransport(options, program, role, kv_tls, engine->kv_stage()));
  return std::unique_ptr<WorkerSide>(
      new WorkerSide(options, role, process, engine, metrics,
                     std::move(transport), std::move(notify)));
}

WorkerSide::WorkerSide(const WorkerOptions& options, v1::WorkerRole role,
                       uint64_t process, engine::Engine* engine,
                       metrics::Metrics* metrics,
                       std::unique_ptr<kv_transfer::Transport> transport,
                       std::function<void()> notify)
    : hasher_(MakeHasher(engine)),
      transport_(std::move(transport)),
      data_address_(transport_->properties().address),
      self_(MakePeerHello(role, options.name, *engine)),
      metrics_(metrics, *engine),
      inbox_(kInboxCapacity, std::move(notify)),
      leases_(Clock::Monotonic()),
      service_(Hello(options, self_, *engine, data_address_, process), &inbox_,
               &leases_) {
  metrics_.SetBounds(options.max_sequences, options.max_queued_tokens,
                     options.token_budget);
  parts_.engine = engine;
  parts_.transport = transport_.get();
  parts_.handoff.self = self_;
  parts_.handoff.kv = Geometry(engine, hasher_.get());
  parts_.handoff.report_layers = engine->kv_stage() != nullptr;
  parts_.handoff.probe_links = true;
  parts_.handoff.wire = {
      .encoding = *kv_transfer::WireEncodingFromName(options.kv_wire),
      .below_bytes_per_second = options.kv_wire_below_mb_per_s * 1e6};
  parts_.handoff.stall_timeout = kStallTimeout;
  parts_.handoff.wake = [this] { inbox_.Wake(); };
  parts_.handoff.lease_until = [this](uint64_t session) {
    return leases_.Until(session);
  };
  parts_.inbox = &inbox_;
  parts_.outbox = &service_;
  parts_.leases = &leases_;
  parts_.metrics = &metrics_;
}

absl::StatusOr<std::string> WorkerSide::Serve(
    const std::string& listen, std::shared_ptr<tls::PemFiles> tls) {
  BATON_ASSIGN_OR_RETURN(server_,
                         rpc::StartServer(listen, {&service_}, std::move(tls)));
  return rpc::WithPort(listen, server_->port);
}

void WorkerSide::Shutdown() {
  service_.Shutdown();
  if (!server_.has_value()) return;
  server_->server->Shutdown(absl::ToChronoTime(absl::Now() + absl::Seconds(2)));
  server_->server->Wait();
  server_.reset();
}

}  // namespace baton::worker
