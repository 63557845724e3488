#include "tests/router/router_fixture.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>

#include <grpcpp/support/byte_buffer.h>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "common/log.h"
#include "tests/support/await_that.h"

namespace baton::router {
namespace {

// GET /metrics, whole.
std::string Scrape(const std::string& address) {
  const std::vector<std::string> parts = absl::StrSplit(address, ':');
  int port = 0;
  CHECK(absl::SimpleAtoi(parts.at(1), &port));
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  PCHECK(fd >= 0);
  const timeval patience{.tv_sec = 20, .tv_usec = 0};
  PCHECK(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience)) ==
         0);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(port));
  CHECK_EQ(inet_pton(AF_INET, parts.at(0).c_str(), &to.sin_addr), 1);
  PCHECK(connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof(to)) == 0);
  const std::string get = "GET /metrics HTTP/1.0\r\n\r\n";
  PCHECK(write(fd, get.data(), get.size()) == static_cast<ssize_t>(get.size()));
  std::string page;
  char chunk[4096];
  ssize_t got = 0;
  while ((got = read(fd, chunk, sizeof(chunk))) > 0) page.append(chunk, got);
  close(fd);
  return page;
}

void SetDeadline(grpc::ClientContext* context) {
  context->set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(30)));
}

// grpc.health.v1.HealthCheckResponse {status: SERVING} is these two bytes.
bool SaysServing(const grpc::ByteBuffer& response) {
  std::vector<grpc::Slice> slices;
  if (!response.Dump(&slices).ok()) return false;
  std::string bytes;
  for (const grpc::Slice& slice : slices) {
    bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return bytes == std::string("\x08\x01");
}

}  // namespace

Call::Call(v1::Inference::Stub* stub, const v1::GenerateRequest& request,
           absl::Duration deadline) {
  context_.set_deadline(absl::ToChronoTime(absl::Now() + deadline));
  reader_ = stub->Generate(&context_, request);
}

Call::~Call() {
  context_.TryCancel();
  Finish();
}

std::optional<v1::GenerateResponse> Call::Read() {
  v1::GenerateResponse response;
  if (!reader_->Read(&response)) return std::nullopt;
  tokens_.insert(tokens_.end(), response.token_ids().begin(),
                 response.token_ids().end());
  text_ += response.text();
  last_ = response;
  return response;
}

bool Call::ReadTokens(int count) {
  while (static_cast<int>(tokens_.size()) < count) {
    if (!Read().has_value()) return false;
  }
  return true;
}

grpc::Status Call::Finish() {
  if (!status_.has_value()) {
    while (Read().has_value()) {
    }
    status_ = reader_->Finish();
  }
  return *status_;
}

std::string Call::TrailingMetadata(const std::string& key) {
  const auto& metadata = context_.GetServerTrailingMetadata();
  const auto it = metadata.find(key);
  if (it == metadata.end()) return "";
  return std::string(it->second.data(), it->second.size());
}

RouterTest::RouterTest() {
  options_.model_dir = absl::StrCat(BATON_SOURCE_DIR, "/models/stories");
  options_.metrics = "";
  options_.http.listen = "";
  // Tests wait for pairing, not for the clock.
  options_.cluster.registry.pairing_grace = absl::Hours(1);
}

test::FakeWorker* RouterTest::AddPrefill(const std::string& name) {
  test::FakeWorker::Options options;
  options.hello = test::FakeWorker::Hello(v1::WORKER_ROLE_PREFILL, name);
  return Add(std::move(options));
}

test::FakeWorker* RouterTest::AddDecode(const std::string& name) {
  test::FakeWorker::Options options;
  options.hello = test::FakeWorker::Hello(v1::WORKER_ROLE_DECODE, name);
  return Add(std::move(options));
}

test::FakeWorker* RouterTest::Add(test::FakeWorker::Options options) {
  const bool prefill = options.hello.role() == v1::WORKER_ROLE_PREFILL;
  workers_.push_back(std::make_unique<test::FakeWorker>(std::move(options)));
  test::FakeWorker* worker = workers_.back().get();
  (prefill ? options_.cluster.prefill_addresses
           : options_.cluster.decode_addresses)
      .push_back(worker->address());
  return worker;
}

void RouterTest::StartRouter() {
  absl::StatusOr<std::unique_ptr<RouterServer>> router =
      RouterServer::Start(options_);
  ASSERT_TRUE(router.ok()) << router.status();
  router_ = *std::move(router);
  channel_ = grpc::CreateChannel(router_->address(),
                                 grpc::InsecureChannelCredentials());
  stub_ = v1::Inference::NewStub(channel_);
}

v1::GenerateRequest RouterTest::Request() {
  v1::GenerateRequest request;
  for (uint32_t id : {5u, 6u, 7u}) request.mutable_token_ids()->add_ids(id);
  request.mutable_sampling()->set_temperature(0);
  request.set_max_tokens(8);
  return request;
}

std::unique_ptr<Call> RouterTest::Generate(const v1::GenerateRequest& request,
                                           absl::Duration deadline) {
  return std::make_unique<Call>(stub_.get(), request, deadline);
}

v1::GetModelResponse RouterTest::GetModel() {
  grpc::ClientContext context;
  SetDeadline(&context);
  v1::GetModelResponse response;
  const grpc::Status status = stub_->GetModel(&context, {}, &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return response;
}

v1::GetClusterResponse RouterTest::GetCluster() {
  grpc::ClientContext context;
  SetDeadline(&context);
  v1::GetClusterResponse response;
  const grpc::Status status = stub_->GetCluster(&context, {}, &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return response;
}

std::optional<v1::WorkerStatus> RouterTest::StatusOf(const std::string& name) {
  const v1::GetClusterResponse cluster = GetCluster();
  for (const v1::WorkerStatus& worker : cluster.workers()) {
    if (worker.name() == name) return worker;
  }
  return std::nullopt;
}

void RouterTest::AwaitWhyNot(const std::string& name, const std::string& why) {
  std::optional<v1::WorkerStatus> status;
  EXPECT_TRUE(test::AwaitThat([&] {
    status = StatusOf(name);
    return status.has_value() && status->usable() == why.empty() &&
           absl::StrContains(status->why_not(), why);
  })) << name
      << " never was unused because of \"" << why << "\", but "
      << (status.has_value() ? status->ShortDebugString() : "not known");
}

void RouterTest::AwaitPairs(int count) {
  v1::GetClusterResponse cluster;
  EXPECT_TRUE(test::AwaitThat([&] {
    cluster = GetCluster();
    return count ==
           std::count_if(cluster.links().begin(), cluster.links().end(),
                         [](const auto& link) { return link.usable(); });
  })) << cluster.ShortDebugString();
}

void RouterTest::AwaitServing(bool serving) {
  grpc::ClientContext context;
  SetDeadline(&context);
  const grpc::Slice nothing;
  const grpc::ByteBuffer request(&nothing, 1);
  const grpc::internal::RpcMethod watch(
      "/grpc.health.v1.Health/Watch",
      grpc::internal::RpcMethod::SERVER_STREAMING);
  const std::unique_ptr<grpc::ClientReader<grpc::ByteBuffer>> reader(
      grpc::internal::ClientReaderFactory<grpc::ByteBuffer>::Create(
          channel_.get(), watch, &context, request));
  grpc::ByteBuffer response;
  bool seen = false;
  while (!seen && reader->Read(&response)) {
    seen = SaysServing(response) == serving;
  }
  EXPECT_TRUE(seen) << "health never became "
                    << (serving ? "SERVING" : "NOT_SERVING");
  context.TryCancel();
  while (reader->Read(&response)) {
  }
  reader->Finish();
}

double RouterTest::Metric(const std::string& prefix) {
  const std::vector<std::string> lines =
      absl::StrSplit(Scrape(router_->metrics_address()), '\n');
  for (const std::string& line : lines) {
    if (line.rfind(prefix, 0) != 0) continue;
    double value = 0;
    const std::vector<std::string> parts = absl::StrSplit(line, ' ');
    if (absl::SimpleAtod(parts.back(), &value)) return value;
  }
  return 0;
}

void TwoPairsFixture::StartAndPairAll() {
  ServeMetrics();
  StartRouter();
  ASSERT_TRUE(
      test::AwaitThat([&] { return Metric("baton_worker_pairs") >= 4; }));
}

}  // namespace baton::router
