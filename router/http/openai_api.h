// The HTTP endpoints of the router.
//
//   POST /v1/completions, /v1/chat/completions,
//        /v1/responses                           the OpenAI API
//   POST /v1/messages, /v1/messages/count_tokens   Anthropic's
//   GET  /v1/models, /v1/models/NAME               for clients of either
//   POST /tokenize, /detokenize
//   GET  /healthz    200 while the router's loop takes its turns
//   GET  /readyz     200 while a request could be served now
//   GET  /metrics    Prometheus
//   GET  /api/cluster   the workers and links, as JSON (for the console)
//   GET  /           the console
//
// All but health and the console's files ask for a key where the router has
// keys, before the body is read; where it has none, pages of other sites are
// refused (page_guard.h). Called on the HTTP server's threads; what may take
// long goes to the intake's.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "router/front_door.h"
#include "router/http/http_message.h"
#include "router/http/intake_pool.h"

namespace baton::router::http {

class OpenAiApi final : public Handler {
 public:
  struct Options {
    // Of the router, for GET /api/cluster.
    std::string name;
    int intake_threads = 2;
    // Bodies larger than this are read by the intake's threads.
    size_t large_body_bytes = 16 << 10;
    // The loop takes a turn at least every half second: when the last one is
    // longer ago, it hangs.
    absl::Duration stuck_after = absl::Seconds(5);
  };

  // `metrics_text` gives GET /metrics its body; any thread. Everything outlives
  // the handler.
  OpenAiApi(const Options& options, FrontDoor* door,
            std::function<std::string()> metrics_text);

  std::optional<Response> Check(const Request& head) override;
  std::optional<Response> NoRoom(const Request& head) override;
  // REQUIRES: Check let it pass.
  void Handle(Request request, std::shared_ptr<Responder> responder) override;

 private:
  using ResponderPtr = std::shared_ptr<Responder>;

  void Post(const Request& request, const ResponderPtr& responder);
  void Get(const Request& request, const ResponderPtr& responder);
  // Null where it refuses, which it answers.
  FrontDoor::Admission Admitted(const Request& request,
                                const ResponderPtr& responder);

  void Tokenize(const Request& request, const ResponderPtr& responder);
  void CountTokens(const Request& request, const ResponderPtr& responder);
  void Detokenize(const Request& request, const ResponderPtr& responder);
  void Models(const Request& request, const ResponderPtr& responder);
  void Cluster(const ResponderPtr& responder);
  Response Health() const;
  Response Readiness() const;
  std::string ModelJson(absl::string_view adapter) const;

  const Options options_;
  FrontDoor* const door_;
  const std::function<std::string()> metrics_text_;
  const int64_t started_unix_seconds_;
  IntakePool intake_;
};

}  // namespace baton::router::http
