// A whole cluster on this machine: the workers and then the router, as child
// processes that speak over loopback.
//
// One thread (the one that `baton up` runs on) calls everything; it must live
// as long as the cluster. Prints nothing: the caller acts on the events.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cli/child_process.h"
#include "cli/stop_signals.h"

namespace baton::cli {

struct LocalClusterOptions {
  // Where baton-router and the workers' programs are.
  std::string program_dir;
  std::string model_dir;
  int num_prefill = 1;
  int num_decode = 1;
  int num_dual = 0;
  // The router's gRPC address.
  std::string listen = "127.0.0.1:8600";
  // Where the router serves HTTP.
  std::string http = "127.0.0.1:8000";
  // Passed on to each process when not empty: "text" or "json".
  std::string log_format;
  // Passed on to the router when not empty.
  std::string placement;
  // More flags of the router.
  std::vector<std::string> router_flags;
  // Passed on to each worker when not empty.
  std::string device;
  std::string transport;
  std::string kv_staging;
  std::string kv_memory;
  std::string kv_offload;
  std::string kv_offload_dir;
  // As --adapter of workers.
  std::vector<std::string> adapters;
  std::string adapter_dir;
  std::string weights;
  std::string kv_dtype;
  std::string tensor_parallel;
  // Of each worker, prefill first, then decode, then dual: what it sees as
  // CUDA_VISIBLE_DEVICES (gpus.h). Empty: what this process has.
  std::vector<std::vector<std::string>> gpus;
  // As `device`, of decode workers.
  std::string output_reserve;
  std::string draft_tokens;
  std::string draft_weights;
  // Compute threads of each worker.
  int threads_per_worker = 1;
  // Gets NAME.log of each process.
  std::string log_dir;
};

// One process of the cluster.
struct Member {
  std::unique_ptr<ChildProcess> process;
  // Both: a dual worker.
  bool is_prefill = false;
  bool is_decode = false;
  absl::Time started;
  // Its own ones, by name; empty: whichever it finds.
  std::vector<std::string> gpus;
  // Whether the caller has been told of it.
  bool reported_ready = false;
  bool reported_exit = false;

  bool is_router() const { return !is_prefill && !is_decode; }
};

struct ClusterEvent {
  enum class Kind { kReady, kExited, kStopSignal, kTimeout };
  Kind kind = Kind::kTimeout;
  // Of kReady and kExited: index in members().
  size_t member = 0;
};

class LocalCluster final {
 public:
  explicit LocalCluster(LocalClusterOptions options);
  ~LocalCluster();

  // Starts all workers at once. The first error ends it.
  absl::Status StartWorkers();
  // REQUIRES: all workers are ready.
  absl::Status StartRouter();

  // Waits for the next thing to happen: a member is ready, one has ended (each
  // reported once), or SIGINT or SIGTERM.
  ClusterEvent Next(absl::Time deadline);

  const LocalClusterOptions& options() const { return options_; }
  const std::vector<Member>& members() const { return members_; }
  const Member& member(size_t index) const { return members_[index]; }
  // Members of a kind that have not ended.
  int NumLivePrefill() const;
  int NumLiveDecode() const;
  // Of both of these.
  int NumLiveDual() const;
  bool AllWorkersReady() const;

  // Asks all to end, the router first so that nothing new is begun, waits
  // `grace` in all, then kills. A second SIGINT or SIGTERM ends the waiting.
  // True when every process that still ran ended by itself with status 0.
  bool Stop(absl::Duration grace);

 private:
  absl::Status StartWorker(const std::string& program, const std::string& name,
                           const std::vector<std::string>& args, Member member);
  absl::Status StartMember(const std::string& program, const std::string& name,
                           const std::vector<std::string>& args, Member member);
  bool NextReported(ClusterEvent* event);
  // Waits until the member has ended. A stop signal that comes meanwhile kills
  // all.
  void AwaitEnd(const Member& member, absl::Time deadline);

  const LocalClusterOptions options_;
  StopSignalFd signals_;
  std::vector<Member> members_;
};

// OK when nobody listens on "host:port" and this machine may; otherwise an
// error that names the address. Port 0 is always free.
absl::Status CheckAddressIsFree(const std::string& address);

// The folder of the running program.
absl::StatusOr<std::string> ProgramDir();

}  // namespace baton::cli
