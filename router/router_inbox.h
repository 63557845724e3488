// What reaches the router's loop: requests and cancels from the services,
// messages from the workers. Everything that happens in the loop starts here or
// with a timer.
#pragma once

#include <functional>
#include <memory>
#include <variant>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "baton/v1/inference.pb.h"
#include "common/bounded_queue.h"
#include "router/client_stream.h"
#include "router/worker_link.h"
#include "scheduling/request.h"

namespace baton::router {

// A request that was read, checked and tokenized. Times are of the monotonic
// clock.
struct IncomingRequest {
  RequestKey key = 0;
  scheduling::RequestSpec spec;
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

using RouterEvent = std::variant<std::unique_ptr<IncomingRequest>, ClientGone,
                                 LinkEvent, ClusterQuery>;

// New requests and queries respect the bound; the others are bounded by what
// was admitted and by the links' flow control.
using RouterInbox = BoundedQueue<RouterEvent>;

}  // namespace baton::router
