// A router that a test plays: its answers are functions, and it remembers what
// it was sent. Any thread.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include <grpcpp/grpcpp.h>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "baton/v1/inference.grpc.pb.h"
#include "common/log.h"

namespace baton::client {

class FakeRouter final : public v1::Inference::Service {
 public:
  using Writer = grpc::ServerWriter<v1::GenerateResponse>;
  using Answer = std::function<grpc::Status(
      grpc::ServerContext*, const v1::GenerateRequest&, Writer*)>;

  // What came with a call.
  struct Seen {
    std::map<std::string, std::string> metadata;
    absl::Duration time_left;
    v1::GenerateRequest request;
  };

  explicit FakeRouter(std::shared_ptr<grpc::ServerCredentials> credentials =
                          grpc::InsecureServerCredentials()) {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", std::move(credentials), &port);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    CHECK(server_ != nullptr && port != 0);
    address_ = absl::StrCat("127.0.0.1:", port);
  }

  const std::string& address() const { return address_; }
  void Shutdown() { server_->Shutdown(); }

  void set_answer(Answer answer) {
    absl::MutexLock lock(&mu_);
    answer_ = std::move(answer);
  }
  Seen last_seen() {
    absl::MutexLock lock(&mu_);
    return seen_;
  }

  grpc::Status Generate(grpc::ServerContext* context,
                        const v1::GenerateRequest* request,
                        Writer* writer) override {
    Answer answer;
    {
      absl::MutexLock lock(&mu_);
      seen_ = SeenOf(*context);
      seen_.request = *request;
      answer = answer_;
    }
    return answer(context, *request, writer);
  }

  grpc::Status GetModel(grpc::ServerContext* context,
                        const v1::GetModelRequest*,
                        v1::GetModelResponse* response) override {
    absl::MutexLock lock(&mu_);
    seen_ = SeenOf(*context);
    response->set_name("fake");
    return grpc::Status::OK;
  }

  grpc::Status GetCluster(grpc::ServerContext*, const v1::GetClusterRequest*,
                          v1::GetClusterResponse* response) override {
    response->set_router_name("router-of-a-test");
    return grpc::Status::OK;
  }

  grpc::Status ExplainRequest(grpc::ServerContext*,
                              const v1::ExplainRequestRequest* request,
                              v1::ExplainRequestResponse* response) override {
    if (request->request_id() != "known") {
      return grpc::Status(grpc::NOT_FOUND, "no such request");
    }
    response->set_request_id(request->request_id());
    return grpc::Status::OK;
  }

  static void Write(Writer* writer, const std::string& text) {
    v1::GenerateResponse response;
    response.set_text(text);
    writer->Write(response);
  }
  static void WriteLast(Writer* writer) {
    v1::GenerateResponse response;
    response.set_finish_reason(v1::FINISH_REASON_STOP);
    writer->Write(response);
  }
  // Writes until the client is gone.
  static grpc::Status WriteForEver(grpc::ServerContext*,
                                   const v1::GenerateRequest&, Writer* writer) {
    v1::GenerateResponse response;
    response.set_text("and then ");
    while (writer->Write(response)) {
    }
    return grpc::Status::CANCELLED;
  }

 private:
  static Seen SeenOf(const grpc::ServerContext& context) {
    Seen seen;
    for (const auto& [key, value] : context.client_metadata()) {
      seen.metadata[std::string(key.data(), key.size())] =
          std::string(value.data(), value.size());
    }
    seen.time_left = absl::FromChrono(context.deadline()) - absl::Now();
    return seen;
  }

  absl::Mutex mu_;
  Answer answer_ ABSL_GUARDED_BY(mu_) = WriteForEver;
  Seen seen_ ABSL_GUARDED_BY(mu_);
  std::string address_;
  // Goes first, and waits for the calls, which use the others.
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace baton::client
