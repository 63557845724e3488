// What reaches the router's loop: requests and cancels from the services,
// messages from the workers. Everything that happens in the loop starts here or
// with a timer.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <variant>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "baton/v1/inference.pb.h"
#include "common/bounded_queue.h"
#include "router/access/access_control.h"
#include "router/answer_options.h"
#include "router/client_stream.h"
#include "router/discovery/worker_discovery.h"
#include "router/prompt_prefix.h"
#include "router/worker_link.h"
#include "scheduling/request.h"

namespace baton::router {

// A request that was read, checked and tokenized. Times are of the monotonic
// clock.
struct IncomingRequest {
  RequestKey key = 0;
  scheduling::RequestSpec spec;
  AnswerOptions answer;
  PromptPrefix prefix;
  // What the client's key allows it, held until the request is over.
  std::shared_ptr<KeyGrant> admission;
  absl::Time received_at;
  absl::Time deadline;
  std::shared_ptr<ClientStream> stream;
};

// The client cancelled or went away.
struct ClientGone {
  RequestKey key = 0;
};

// Someone asks what the router knows of its cluster. `answer` is called once,
// on the loop's thread.
struct ClusterQuery {
  std::function<void(absl::StatusOr<v1::GetClusterResponse>)> answer;
};

// Someone asks where a request went. `answer` is called once, on the loop's
// thread; NotFound when the router does not know it (any more).
struct ExplainQuery {
  std::string request_id;
  std::function<void(absl::StatusOr<v1::ExplainRequestResponse>)> answer;
};

using RouterEvent =
    std::variant<std::unique_ptr<IncomingRequest>, ClientGone, LinkEvent,
                 ClusterQuery, ExplainQuery, FoundWorkers>;

// New requests, queries and look-ups respect the bound; the others are bounded
// by what was admitted and by the links' flow control.
using RouterInbox = BoundedQueue<RouterEvent>;

}  // namespace baton::router
