// A handler that gives its requests to the test's thread, or answers them by a
// function on the server's.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <utility>

#include <gtest/gtest.h>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "router/http/http_message.h"

namespace baton::router::http {

inline constexpr char kGet[] = "GET /a HTTP/1.1\r\nHost: x\r\n\r\n";
inline constexpr char kPost[] =
    "POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\nx";
// What comes at once comes within this.
inline constexpr absl::Duration kSoon = absl::Seconds(20);

struct HeldRequest {
  Request request;
  std::shared_ptr<Responder> responder;
};

// Keeps requests until the test asks for them.
class HeldHandler final : public Handler {
 public:
  void Handle(Request request, std::shared_ptr<Responder> responder) override {
    absl::MutexLock lock(&mu_);
    held_.push_back({std::move(request), std::move(responder)});
  }

  // Waits for the next one.
  HeldRequest Next() {
    absl::MutexLock lock(&mu_);
    const bool came = mu_.AwaitWithTimeout(
        absl::Condition(this, &HeldHandler::HasOne), absl::Seconds(20));
    if (!came) {
      ADD_FAILURE() << "no request came for 20 s";
      return {};
    }
    HeldRequest next = std::move(held_.front());
    held_.pop_front();
    return next;
  }

  size_t waiting() {
    absl::MutexLock lock(&mu_);
    return held_.size();
  }

 private:
  bool HasOne() const ABSL_SHARED_LOCKS_REQUIRED(mu_) { return !held_.empty(); }

  absl::Mutex mu_;
  std::deque<HeldRequest> held_ ABSL_GUARDED_BY(mu_);
};

// Notified when the client of `responder` has left. The responder holds it too:
// it may be told when the test that waited for that is over.
inline std::shared_ptr<absl::Notification> Gone(Responder& responder) {
  auto gone = std::make_shared<absl::Notification>();
  responder.OnGone([gone] { gone->Notify(); });
  return gone;
}

class FunctionHandler final : public Handler {
 public:
  using Function = std::function<void(Request, std::shared_ptr<Responder>)>;

  explicit FunctionHandler(Function function)
      : function_(std::move(function)) {}

  void Handle(Request request, std::shared_ptr<Responder> responder) override {
    function_(std::move(request), std::move(responder));
  }

 private:
  const Function function_;
};

// Answers with the method, path, query and body.
inline FunctionHandler EchoHandler() {
  return FunctionHandler(
      [](Request request, std::shared_ptr<Responder> responder) {
        Response response;
        response.headers.emplace_back("Content-Type", "text/plain");
        response.body = request.method + " " + request.path + " ?" +
                        request.query + " [" + request.body + "]";
        responder->Send(std::move(response));
      });
}

}  // namespace baton::router::http
