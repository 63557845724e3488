// Starts the real programs of a cluster for a test: each with --ready-fd and a
// log of its own, killed by pid, and stopped at the end. Every wait has a
// deadline.
//
// For the test's main thread, which must live as long as the cluster.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <grpcpp/grpcpp.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "baton/v1/inference.grpc.pb.h"
#include "cli/child_process.h"
#include "tests/support/scratch_dir.h"

namespace baton::test {

using Flags = std::vector<std::string>;

// Long enough for a sanitizer build on a busy machine; a test that passes never
// waits that long.
inline constexpr absl::Duration kPatience = absl::Seconds(60);

// The workers of a cluster: one entry of extra flags each.
struct ClusterShape {
  std::vector<Flags> prefill = {{}};
  std::vector<Flags> decode = {{}};
  // With --role: counted in it.
  std::vector<Flags> dual = {};
  Flags router;
};

class Cluster final {
 public:
  explicit Cluster(std::string model_dir);
  // For programs that are given another model.
  void set_model_dir(std::string model_dir) {
    model_dir_ = std::move(model_dir);
  }
  // How stubs reach the router; plain text unless this was called.
  void set_credentials(std::shared_ptr<grpc::ChannelCredentials> credentials) {
    credentials_ = std::move(credentials);
  }
  // A command that starts the program `name` in its stead, such as
  // {"ip", "netns", "exec", ...}.
  void set_launcher(const std::string& name, Flags command) {
    launchers_[name] = std::move(command);
  }
  // Stops what runs, the router first, and checks how it ends (a sanitizer's
  // report ends a program with another status); writes all logs to stderr when
  // the test has failed.
  ~Cluster();

  // Starts all and waits until the router counts every worker.
  absl::Status Start(const ClusterShape& shape);

  // Starts baton-PROGRAM as `name` without waiting; `flags` come after the
  // common ones. A worker's address is one that it can be started at again.
  absl::StatusOr<cli::ChildProcess*> Launch(const std::string& program,
                                            const std::string& name,
                                            const Flags& flags);
  // Starts the router over the workers named, dual ones in both lists, and
  // waits until it listens.
  absl::Status StartRouter(const std::vector<std::string>& prefill,
                           const std::vector<std::string>& decode,
                           const Flags& flags);
  // Until the router counts so many workers.
  absl::Status AwaitJoined(int num_prefill, int num_decode,
                           absl::Duration timeout = kPatience);

  // "prefill-0", "decode-1", "router".
  cli::ChildProcess& process(const std::string& name);
  // SIGKILL. What is not killed must end with status 0 when the cluster does.
  void Kill(const std::string& name);
  // "grpc", "data" or "metrics" of a process that is ready.
  std::string Address(const std::string& name, const std::string& kind);

  // A stub with a connection of its own.
  std::unique_ptr<v1::Inference::Stub> MakeStub();

 private:
  std::string model_dir_;
  const ScratchDir logs_;
  std::map<std::string, std::unique_ptr<cli::ChildProcess>> processes_;
  std::set<std::string> killed_;
  std::map<std::string, Flags> launchers_;
  std::shared_ptr<grpc::ChannelCredentials> credentials_;
};

// As a client has it who is patient. Unlike rpc::MakeControlChannel, it does
// not take a process for lost that a busy machine does not let answer pings for
// a second. Plain text without credentials.
std::shared_ptr<grpc::Channel> MakeClientChannel(
    const std::string& address,
    std::shared_ptr<grpc::ChannelCredentials> credentials = nullptr);

// kPatience from now.
void SetDeadline(grpc::ClientContext* context);

// How a program that ran to its end did.
struct RunResult {
  cli::ExitState exit;
  std::string out;
  std::string err;
};

// Path of a program that this build made.
std::string ProgramPath(const std::string& name);

// Runs a program to its end; kills it at the deadline, which is then its exit.
RunResult RunProgram(const std::string& program, const Flags& flags,
                     absl::Duration timeout = kPatience);

// Asks again every few milliseconds until it is true; false at the deadline.
// For what a process outside cannot be waited on.
bool Eventually(const std::function<bool()>& condition,
                absl::Duration timeout = kPatience);

}  // namespace baton::test
