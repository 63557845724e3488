#include "tests/integration/raw_call.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <memory>
#include <utility>
#include <vector>

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "cli/child_process.h"
#include "cli/host_port.h"
#include "common/rpc/grpc_setup.h"
#include "common/status_macros.h"
#include "tests/integration/cluster.h"

namespace baton::test {
namespace {

constexpr int kTimeoutSeconds = 20;

}  // namespace

absl::StatusOr<std::string> RawCall(const std::string& address,
                                    const std::string& method,
                                    const std::string& request) {
  grpc::GenericStub stub(MakeClientChannel(address));
  grpc::ClientContext context;
  SetDeadline(&context);
  grpc::CompletionQueue queue;
  const auto call = stub.PrepareCall(&context, method, &queue);
  // One operation at a time: each is waited for before the next.
  const auto done = [&queue] {
    void* tag = nullptr;
    bool ok = false;
    return queue.Next(&tag, &ok) && ok;
  };
  call->StartCall(nullptr);
  bool ok = done();
  if (ok) {
    const grpc::Slice slice(request);
    call->WriteLast(grpc::ByteBuffer(&slice, 1), grpc::WriteOptions(), nullptr);
    ok = done();
  }
  grpc::ByteBuffer response;
  bool answered = false;
  if (ok) {
    call->Read(&response, nullptr);
    answered = done();
  }
  grpc::Status status;
  call->Finish(&status, nullptr);
  done();
  queue.Shutdown();
  while (done()) {
  }
  if (!status.ok()) return rpc::FromGrpc(status);
  if (!answered) return absl::UnavailableError("no answer");
  std::vector<grpc::Slice> slices;
  if (!response.Dump(&slices).ok()) return absl::InternalError("no bytes");
  std::string text;
  for (const grpc::Slice& slice : slices) {
    text.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return text;
}

absl::StatusOr<std::string> HttpGet(const std::string& address,
                                    const std::string& path) {
  BATON_ASSIGN_OR_RETURN(const cli::HostPort host_port,
                         cli::ParseHostPort(address));
  const cli::OwnedFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const timeval timeout = {kTimeoutSeconds, 0};
  setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
  sockaddr_in to = {};
  to.sin_family = AF_INET;
  to.sin_port = htons(host_port.port);
  inet_pton(AF_INET, host_port.host.c_str(), &to.sin_addr);
  if (connect(fd.get(), reinterpret_cast<sockaddr*>(&to), sizeof(to)) != 0) {
    return absl::ErrnoToStatus(errno, "connect " + address);
  }
  const std::string request =
      absl::StrCat("GET ", path, " HTTP/1.1\r\nHost: ", address,
                   "\r\nConnection: close\r\n\r\n");
  if (write(fd.get(), request.data(), request.size()) !=
      static_cast<ssize_t>(request.size())) {
    return absl::ErrnoToStatus(errno, "write");
  }
  std::string answer;
  char buffer[4096];
  ssize_t n = 0;
  while ((n = read(fd.get(), buffer, sizeof(buffer))) > 0) {
    answer.append(buffer, n);
  }
  if (n < 0) return absl::ErrnoToStatus(errno, "read");
  const size_t body = answer.find("\r\n\r\n");
  if (!absl::StartsWith(answer, "HTTP/1.1 200") || body == std::string::npos) {
    return absl::UnavailableError(answer.substr(0, 200));
  }
  return answer.substr(body + 4);
}

double MetricValue(const std::string& text, const std::string& name) {
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    if (!absl::StartsWith(line, name + "{")) continue;
    double value = 0;
    const std::vector<absl::string_view> parts = absl::StrSplit(line, ' ');
    if (absl::SimpleAtod(parts.back(), &value)) return value;
  }
  return -1;
}

double MetricSum(const std::string& text, const std::string& name,
                 const std::string& labels) {
  double sum = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    if (absl::StartsWith(line, name + "{") && absl::StrContains(line, labels)) {
      sum += MetricValue(std::string(line), name);
    }
  }
  return sum;
}

}  // namespace baton::test
