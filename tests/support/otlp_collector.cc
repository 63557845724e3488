#include "tests/support/otlp_collector.h"

#include <utility>

#include <gtest/gtest.h>

#include "absl/strings/numbers.h"
#include "common/log.h"

namespace baton::test {

using nlohmann::json;
using router::http::HttpServer;
using router::http::Request;
using router::http::Responder;
using router::http::Response;

namespace {

int64_t Nanos(const json& span, const char* key) {
  int64_t value = 0;
  EXPECT_TRUE(absl::SimpleAtoi(span.at(key).get<std::string>(), &value))
      << span;
  return value;
}

}  // namespace

OtlpCollector::OtlpCollector(const std::string& listen) {
  auto server = HttpServer::Start({.listen = listen}, this);
  CHECK(server.ok()) << server.status();
  server_ = *std::move(server);
  address_ = server_->address();
}

OtlpCollector::~OtlpCollector() {
  std::vector<std::shared_ptr<Responder>> held;
  {
    absl::MutexLock lock(&mu_);
    held.swap(held_);
  }
  for (const auto& responder : held) responder->Abort();
  server_.reset();
}

void OtlpCollector::AnswerNext(std::vector<Response> answers) {
  absl::MutexLock lock(&mu_);
  for (Response& answer : answers) answers_.push_back(std::move(answer));
}

void OtlpCollector::HoldAnswers() {
  absl::MutexLock lock(&mu_);
  hold_ = true;
}

void OtlpCollector::Handle(Request request,
                           std::shared_ptr<Responder> responder) {
  Response answer{.headers = {{"content-type", "application/json"}},
                  .body = "{}"};
  {
    absl::MutexLock lock(&mu_);
    if (hold_) {
      held_.push_back(std::move(responder));
      posts_.push_back(std::move(request));
      return;
    }
    if (!answers_.empty()) {
      answer = std::move(answers_.front());
      answers_.pop_front();
    }
    if (answer.status == 200) {
      const json body =
          json::parse(request.body, nullptr, /*allow_exceptions=*/false);
      EXPECT_TRUE(body.is_object()) << request.body;
      if (body.is_object()) {
        for (const json& resource : body.at("resourceSpans")) {
          for (const json& scope : resource.at("scopeSpans")) {
            for (const json& span : scope.at("spans")) spans_.push_back(span);
          }
        }
      }
    }
    posts_.push_back(std::move(request));
  }
  responder->Send(std::move(answer));
}

std::vector<Request> OtlpCollector::Posts() const {
  absl::MutexLock lock(&mu_);
  return posts_;
}

void OtlpCollector::AwaitPosts(size_t count) {
  absl::MutexLock lock(&mu_);
  const auto came = [this, count]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
    return posts_.size() >= count;
  };
  EXPECT_TRUE(mu_.AwaitWithTimeout(absl::Condition(&came), kPatience))
      << posts_.size() << " of " << count << " posts came";
}

std::vector<json> OtlpCollector::Spans() const {
  absl::MutexLock lock(&mu_);
  return spans_;
}

std::vector<json> OtlpCollector::AwaitSpans(size_t count) {
  absl::MutexLock lock(&mu_);
  const auto came = [this, count]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
    return spans_.size() >= count;
  };
  EXPECT_TRUE(mu_.AwaitWithTimeout(absl::Condition(&came), kPatience))
      << spans_.size() << " of " << count << " spans came";
  return spans_;
}

bool OtlpCollector::HasRequest(const std::string& id) const {
  for (const json& span : spans_) {
    if (AttributeOf(span, "gen_ai.response.id") == id) return true;
  }
  return false;
}

std::vector<json> OtlpCollector::AwaitRequest(const std::string& id) {
  absl::MutexLock lock(&mu_);
  const auto came = [this, &id]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
    return HasRequest(id);
  };
  EXPECT_TRUE(mu_.AwaitWithTimeout(absl::Condition(&came), kPatience))
      << "request " << id << " has no span";
  std::string own;
  for (const json& span : spans_) {
    if (AttributeOf(span, "gen_ai.response.id") == id) own = span["spanId"];
  }
  std::vector<json> found;
  for (const json& span : spans_) {
    if (span["spanId"] == own || span.value("parentSpanId", "") == own) {
      found.push_back(span);
    }
  }
  return found;
}

json AttributeOf(const json& object, absl::string_view key) {
  for (const json& attribute : object.at("attributes")) {
    if (attribute.at("key") != std::string(key)) continue;
    return attribute.at("value").begin().value();
  }
  return nullptr;
}

std::vector<json> Named(const std::vector<json>& spans,
                        absl::string_view name) {
  std::vector<json> found;
  for (const json& span : spans) {
    if (span.at("name") == std::string(name)) found.push_back(span);
  }
  return found;
}

int64_t StartOf(const json& span) { return Nanos(span, "startTimeUnixNano"); }
int64_t EndOf(const json& span) { return Nanos(span, "endTimeUnixNano"); }

}  // namespace baton::test
