// A real baton-router in a process of its own, on a CPU of its own.
//
// One thread, which must outlive it.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "baton/v1/inference.grpc.pb.h"
#include "cli/child_process.h"
#include "tests/bench/router_benchmark_setup.h"

namespace baton::bench {

// What clients call the model.
inline constexpr char kModelName[] = "bench";

class RouterProcess final {
 public:
  // Waits until it serves with all of `workers`.
  RouterProcess(const std::string& program, const std::string& model_dir,
                const std::vector<std::string>& workers);
  // Kills it.
  ~RouterProcess();

  pid_t pid() const { return process_->pid(); }
  const std::string& grpc_address() const;
  const std::string& http_address() const;
  std::unique_ptr<v1::Inference::Stub> MakeStub() const;

  // The sum of a metric's samples whose lines have `label` in them.
  double Metric(const std::string& name, const std::string& label = "") const;

 private:
  const ScratchFolder logs_;
  std::unique_ptr<cli::ChildProcess> process_;
};

// A connected blocking socket; "127.0.0.1:80". Set `receive_buffer` for a small
// one.
int ConnectTo(const std::string& address, int receive_buffer = 0);
// Sends all of it.
void SendAll(int fd, const std::string& bytes);
// What comes until the peer closes.
std::string ReceiveAll(int fd);

// A whole POST /v1/completions, for ConnectTo's socket.
std::string CompletionRequest(int stream, const std::vector<uint32_t>& prompt,
                              int max_tokens, bool streamed);
v1::GenerateRequest MakeGenerateRequest(int stream,
                                        const std::vector<uint32_t>& prompt,
                                        int max_tokens);
// So many token ids, none of them special.
std::vector<uint32_t> MakePrompt(int num_tokens);

}  // namespace baton::bench
