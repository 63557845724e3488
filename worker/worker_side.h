// What a worker has of each kind that it is: its end of the control streams, of
// the data plane, and the parts of a loop. A prefill or a decode worker has one
// side, a dual worker both.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "baton/v1/peer.pb.h"
#include "common/metrics/metrics.h"
#include "common/rpc/grpc_setup.h"
#include "common/tls/pem_files.h"
#include "engine/engine.h"
#include "kv_transfer/page_hasher.h"
#include "kv_transfer/transport.h"
#include "kv_transfer/transports/tcp/tcp_transport.h"
#include "worker/control_service.h"
#include "worker/options.h"
#include "worker/session_leases.h"
#include "worker/worker_metrics.h"
#include "worker/worker_process.h"

namespace baton::worker {

class WorkerSide final {
 public:
  // Opens the data plane, with what the program has for it. `process` names the
  // process of a dual worker, 0: of one kind only. `notify`, if any, is called
  // from any thread when there is news for the loop. `engine` and `metrics`
  // outlive the side.
  static absl::StatusOr<std::unique_ptr<WorkerSide>> Open(
      const WorkerOptions& options, const WorkerProgram& program,
      v1::WorkerRole role, uint64_t process, engine::Engine* engine,
      metrics::Metrics* metrics, const kv_transfer::TcpTls& kv_tls,
      std::function<void()> notify = nullptr);

  // Ends what Serve began. The loop is gone.
  ~WorkerSide() { Shutdown(); }

  // For the loop, which does not outlive the side. The caller adds what its
  // sides share.
  WorkerParts& parts() { return parts_; }
  // Of the data plane, as peers are given it; empty: it only connects.
  const std::string& data_address() const { return data_address_; }
  // What KV goes by: "local/memfd+tcp/tls".
  const std::string& data_transport() const {
    return transport_->properties().name;
  }

  // Lets routers connect at `listen`. Returns the address with its port.
  absl::StatusOr<std::string> Serve(const std::string& listen,
                                    std::shared_ptr<tls::PemFiles> tls);
  // Ends the streams, after what is queued on them. Again: nothing happens.
  void Shutdown();

 private:
  WorkerSide(const WorkerOptions& options, v1::WorkerRole role,
             uint64_t process, engine::Engine* engine,
             metrics::Metrics* metrics,
             std::unique_ptr<kv_transfer::Transport> transport,
             std::function<void()> notify);

  // Of staged blocks on a device.
  const std::unique_ptr<kv_transfer::PageHasher> hasher_;
  const std::unique_ptr<kv_transfer::Transport> transport_;
  const std::string data_address_;
  const v1::PeerHello self_;
  WorkerMetrics metrics_;
  Inbox inbox_;
  SessionLeases leases_;
  ControlService service_;
  WorkerParts parts_;
  std::optional<rpc::RunningServer> server_;
};

}  // namespace baton::worker
