#include "tests/bench/router_benchmark_router.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <utility>

#include <grpcpp/grpcpp.h>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/log.h"
#include "common/rpc/grpc_setup.h"

namespace baton::bench {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(30);

}  // namespace

RouterProcess::RouterProcess(const std::string& program,
                             const std::string& model_dir,
                             const std::vector<std::string>& workers) {
  cli::ChildOptions options;
  options.name = "router";
  options.command = {
      program,    "--model",          model_dir,     "--served-model-name",
      kModelName, "--http",           "127.0.0.1:0", "--http-threads",
      "1",        "--die-with-parent"};
  for (const std::string& worker : workers) {
    options.command.push_back("--decode");
    options.command.push_back(worker);
  }
  options.log_path = logs_.path() + "/router.log";
  KeepToCpu(kRouterCpu);  // handed down
  auto process = cli::ChildProcess::Start(std::move(options));
  KeepToCpu(kOwnCpu);
  CHECK(process.ok()) << process.status();
  process_ = *std::move(process);
  const absl::Status ready = process_->WaitReady(kPatience);
  CHECK(ready.ok()) << ready;
  const auto stub = MakeStub();
  v1::GetModelResponse model;
  const int64_t deadline = NowNs() + absl::ToInt64Nanoseconds(kPatience);
  while (model.num_decode_workers() != workers.size()) {
    CHECK_LT(NowNs(), deadline) << model.ShortDebugString() << "\n"
                                << process_->LogTail(20);
    SleepSeconds(0.01);
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() +
                         std::chrono::seconds(5));
    stub->GetModel(&context, {}, &model);
  }
}

RouterProcess::~RouterProcess() {
  if (process_->Poll().has_value()) {
    LOG(ERROR) << "the router ended by itself: " << process_->Poll()->Describe()
               << "\n"
               << process_->LogTail(40);
    return;
  }
  process_->Signal(SIGKILL);
  const auto ended = process_->WaitExit(kPatience);
  CHECK(ended.ok()) << ended.status();
}

const std::string& RouterProcess::grpc_address() const {
  return process_->ready().at("grpc");
}

const std::string& RouterProcess::http_address() const {
  return process_->ready().at("http");
}

std::unique_ptr<v1::Inference::Stub> RouterProcess::MakeStub() const {
  return v1::Inference::NewStub(rpc::MakeControlChannel(grpc_address()));
}

double RouterProcess::Metric(const std::string& name,
                             const std::string& label) const {
  const int fd = ConnectTo(process_->ready().at("metrics"));
  SendAll(fd, "GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
  const std::string text = ReceiveAll(fd);
  close(fd);
  double sum = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    if (!absl::StartsWith(line, name) || !absl::StrContains(line, label)) {
      continue;
    }
    double value = 0;
    if (absl::SimpleAtod(line.substr(line.rfind(' ') + 1), &value)) {
      sum += value;
    }
  }
  return sum;
}

int ConnectTo(const std::string& address, int receive_buffer) {
  const size_t colon = address.rfind(':');
  int port = 0;
  CHECK(colon != std::string::npos &&
        absl::SimpleAtoi(address.substr(colon + 1), &port))
      << address;
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_port = htons(static_cast<uint16_t>(port));
  PCHECK(inet_pton(AF_INET, address.substr(0, colon).c_str(), &at.sin_addr) ==
         1)
      << address;
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  PCHECK(fd >= 0);
  if (receive_buffer > 0) {
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &receive_buffer,
               sizeof(receive_buffer));
  }
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  // Closing gives the port back at once: there are only so many.
  const linger none = {1, 0};
  setsockopt(fd, SOL_SOCKET, SO_LINGER, &none, sizeof(none));
  PCHECK(connect(fd, reinterpret_cast<sockaddr*>(&at), sizeof(at)) == 0)
      << address;
  return fd;
}

void SendAll(int fd, const std::string& bytes) {
  size_t sent = 0;
  while (sent < bytes.size()) {
    const ssize_t n =
        send(fd, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
    PCHECK(n > 0);
    sent += static_cast<size_t>(n);
  }
}

std::string ReceiveAll(int fd) {
  std::string all;
  char buffer[65536];
  for (;;) {
    const ssize_t n = recv(fd, buffer, sizeof(buffer), 0);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return all;
    all.append(buffer, static_cast<size_t>(n));
  }
}

std::string CompletionRequest(int stream, const std::vector<uint32_t>& prompt,
                              int max_tokens, bool streamed) {
  const std::string body =
      absl::StrCat(R"({"model":")", kModelName, R"(","prompt":[)",
                   absl::StrJoin(prompt, ","), R"(],"max_tokens":)", max_tokens,
                   R"(,"temperature":0,"ignore_eos":true,"stream":)",
                   streamed ? "true" : "false", "}");
  return absl::StrCat(
      "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\n"
      "content-type: application/json\r\nx-request-id: ",
      StreamName(stream), "\r\ncontent-length: ", body.size(), "\r\n",
      streamed ? "" : "connection: close\r\n", "\r\n", body);
}

v1::GenerateRequest MakeGenerateRequest(int stream,
                                        const std::vector<uint32_t>& prompt,
                                        int max_tokens) {
  v1::GenerateRequest request;
  request.set_request_id(StreamName(stream));
  auto* ids = request.mutable_token_ids()->mutable_ids();
  ids->Add(prompt.begin(), prompt.end());
  request.set_max_tokens(static_cast<uint32_t>(max_tokens));
  request.mutable_sampling()->set_temperature(0);
  request.set_ignore_eos(true);
  return request;
}

std::vector<uint32_t> MakePrompt(int num_tokens) {
  std::vector<uint32_t> prompt;
  prompt.reserve(num_tokens);
  for (int i = 0; i < num_tokens; ++i) prompt.push_back((i * 37 + 11) % 2000);
  return prompt;
}

}  // namespace baton::bench
