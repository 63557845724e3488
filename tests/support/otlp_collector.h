// A collector of spans for tests: a real HTTP server that keeps what it is
// posted and answers as the test says.
//
// Any thread. Every wait ends after kPatience with a failed test.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/json.h"
#include "router/http/http_server.h"

namespace baton::test {

class OtlpCollector final : private router::http::Handler {
 public:
  static constexpr absl::Duration kPatience = absl::Seconds(60);

  // Listens on "127.0.0.1:PORT"; port 0 takes a free one.
  explicit OtlpCollector(const std::string& listen = "127.0.0.1:0");
  ~OtlpCollector() override;

  const std::string& address() const { return address_; }
  std::string endpoint() const { return "http://" + address_; }

  // The answers to the next posts; after them all are 200.
  void AnswerNext(std::vector<router::http::Response> answers)
      ABSL_LOCKS_EXCLUDED(mu_);
  // No post is answered from now on.
  void HoldAnswers() ABSL_LOCKS_EXCLUDED(mu_);

  // Posts that came, also those that were refused.
  std::vector<router::http::Request> Posts() const ABSL_LOCKS_EXCLUDED(mu_);
  void AwaitPosts(size_t count) ABSL_LOCKS_EXCLUDED(mu_);

  // Spans of posts that were answered with 200, in order.
  std::vector<nlohmann::json> Spans() const ABSL_LOCKS_EXCLUDED(mu_);
  // Waits until there are so many, and returns all.
  std::vector<nlohmann::json> AwaitSpans(size_t count) ABSL_LOCKS_EXCLUDED(mu_);
  // Waits until the request of that id has its own span, and returns all spans
  // of its trace.
  std::vector<nlohmann::json> AwaitRequest(const std::string& id)
      ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void Handle(router::http::Request request,
              std::shared_ptr<router::http::Responder> responder) override
      ABSL_LOCKS_EXCLUDED(mu_);
  bool HasRequest(const std::string& id) const ABSL_SHARED_LOCKS_REQUIRED(mu_);

  mutable absl::Mutex mu_;
  std::deque<router::http::Response> answers_ ABSL_GUARDED_BY(mu_);
  bool hold_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<std::shared_ptr<router::http::Responder>> held_
      ABSL_GUARDED_BY(mu_);
  std::vector<router::http::Request> posts_ ABSL_GUARDED_BY(mu_);
  std::vector<nlohmann::json> spans_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<router::http::HttpServer> server_;
  std::string address_;
};

// The value of an attribute as JSON has it: {"stringValue":"x"} is "x",
// {"intValue":"3"} is "3", {"doubleValue":0.5} is 0.5; null: there is none.
nlohmann::json AttributeOf(const nlohmann::json& object, absl::string_view key);

// The spans of that name.
std::vector<nlohmann::json> Named(const std::vector<nlohmann::json>& spans,
                                  absl::string_view name);

// Start and end, in nanoseconds.
int64_t StartOf(const nlohmann::json& span);
int64_t EndOf(const nlohmann::json& span);

}  // namespace baton::test
