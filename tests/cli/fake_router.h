// A router that the test plays, for the commands that ask one for text.
#pragma once

#include <cstdint>
#include <cstdio>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "baton/v1/inference.grpc.pb.h"
#include "common/process/process.h"
#include "common/rpc/grpc_setup.h"

namespace baton::cli {

using Writer = grpc::ServerWriter<v1::GenerateResponse>;
using Answer = std::function<grpc::Status(grpc::ServerContext*, Writer*)>;

class FakeRouter final : public v1::Inference::Service {
 public:
  grpc::Status Generate(grpc::ServerContext* context,
                        const v1::GenerateRequest* request,
                        Writer* writer) override {
    absl::MutexLock lock(&mu_);
    requests_.push_back(*request);
    const auto& metadata = context->client_metadata();
    const auto authorization = metadata.find("authorization");
    if (authorization != metadata.end()) {
      authorization_.assign(authorization->second.data(),
                            authorization->second.size());
    }
    return answer_(context, writer);
  }

  void set_answer(Answer answer) {
    absl::MutexLock lock(&mu_);
    answer_ = std::move(answer);
  }
  // The last one.
  v1::GenerateRequest request() {
    absl::MutexLock lock(&mu_);
    return requests_.back();
  }
  std::vector<v1::GenerateRequest> requests() {
    absl::MutexLock lock(&mu_);
    return requests_;
  }
  // What came as "authorization".
  std::string authorization() {
    absl::MutexLock lock(&mu_);
    return authorization_;
  }

 private:
  absl::Mutex mu_;
  Answer answer_ ABSL_GUARDED_BY(mu_);
  std::vector<v1::GenerateRequest> requests_ ABSL_GUARDED_BY(mu_);
  std::string authorization_ ABSL_GUARDED_BY(mu_);
};

inline void WriteToken(Writer* writer, uint32_t id, const std::string& text) {
  v1::GenerateResponse response;
  response.set_text(text);
  response.add_token_ids(id);
  writer->Write(response);
}

inline std::string ReadBack(std::FILE* file) {
  std::string text;
  std::rewind(file);
  char buffer[4096];
  size_t n = 0;
  while ((n = std::fread(buffer, 1, sizeof(buffer), file)) > 0) {
    text.append(buffer, n);
  }
  return text;
}

// A test with such a router.
class FakeRouterTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    process::SetUpSignals(/*die_with_parent=*/false);
  }
  void SetUp() override {
    auto running = rpc::StartServer("127.0.0.1:0", {&router_});
    ASSERT_TRUE(running.ok()) << running.status();
    server_ = *std::move(running);
  }
  std::string address() const {
    return absl::StrCat("127.0.0.1:", server_.port);
  }

  FakeRouter router_;
  rpc::RunningServer server_;
};

}  // namespace baton::cli
