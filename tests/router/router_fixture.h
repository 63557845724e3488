// A real router in the test's process, fake workers around it, and clients that
// read their stream step by step.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include "baton/v1/inference.grpc.pb.h"
#include "router/router_server.h"
#include "tests/support/fake_worker.h"

namespace baton::router {

// What ends an answer of the model that routers serve here.
inline constexpr uint32_t kEos = 2044;

// One Generate call. Every wait ends with the call's deadline, which is far
// away unless the test sets one.
class Call final {
 public:
  Call(v1::Inference::Stub* stub, const v1::GenerateRequest& request,
       absl::Duration deadline = absl::Seconds(30));
  // Ends the call if it has not ended.
  ~Call();

  // The next response; nothing at the end of the stream.
  std::optional<v1::GenerateResponse> Read();
  // Reads until `count` tokens have come in all. False when the stream ends.
  bool ReadTokens(int count);
  // Reads to the end. Returns the status.
  grpc::Status Finish();
  void Cancel() { context_.TryCancel(); }

  // Of everything read so far.
  const std::vector<uint32_t>& tokens() const { return tokens_; }
  const std::string& text() const { return text_; }
  const v1::GenerateResponse& last() const { return last_; }
  // After Finish; empty when there is none.
  std::string TrailingMetadata(const std::string& key);

 private:
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReader<v1::GenerateResponse>> reader_;
  std::optional<grpc::Status> status_;
  std::vector<uint32_t> tokens_;
  std::string text_;
  v1::GenerateResponse last_;
};

class RouterTest : public testing::Test {
 protected:
  RouterTest();

  // Workers come first: the router is told their addresses.
  test::FakeWorker* AddPrefill(const std::string& name);
  test::FakeWorker* AddDecode(const std::string& name);
  test::FakeWorker* Add(test::FakeWorker::Options options);
  // Not by default: the HTTP server takes two seconds to stop.
  void ServeMetrics() { options_.metrics = "127.0.0.1:0"; }
  void StartRouter();

  // token_ids {5, 6, 7}, greedy, at most 8 tokens.
  static v1::GenerateRequest Request();
  std::unique_ptr<Call> Generate(const v1::GenerateRequest& request = Request(),
                                 absl::Duration deadline = absl::Seconds(30));

  v1::GetModelResponse GetModel();
  v1::GetClusterResponse GetCluster();
  // The worker of that name, as GetCluster tells of it; nothing before it said
  // hello.
  std::optional<v1::WorkerStatus> StatusOf(const std::string& name);
  // Waits until the router says that it is not used, and why. Empty: until it
  // is used.
  void AwaitWhyNot(const std::string& name, const std::string& why);
  // Until so many pairs of workers can hand over KV.
  void AwaitPairs(int count);
  // Waits until the health service says so.
  void AwaitServing(bool serving);
  // The value of the metric whose line starts with `prefix`; 0 if none.
  // REQUIRES: ServeMetrics before StartRouter.
  double Metric(const std::string& prefix);

  // `flow.settle_wait` for a test in which all that it looks at depends on the
  // reports, which do come.
  static constexpr absl::Duration kReportsCome = absl::Seconds(20);

  RouterOptions options_;
  std::vector<std::unique_ptr<test::FakeWorker>> workers_;
  std::unique_ptr<RouterServer> router_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Inference::Stub> stub_;
};

// Two workers of each kind, which the first requests find idle.
class TwoPairsFixture : public RouterTest {
 protected:
  TwoPairsFixture()
      : p_{AddPrefill("p0"), AddPrefill("p1")},
        d_{AddDecode("d0"), AddDecode("d1")} {}

  void StartAndPairAll();

  test::FakeWorker* const p_[2];
  test::FakeWorker* const d_[2];
};

}  // namespace baton::router
