// One client's response stream, as the router's loop sees it: a seam, so that
// the loop knows no gRPC call and other front doors (HTTP) can stand here.
//
// Called by the router's loop thread; neither function blocks.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "baton/v1/inference.pb.h"

namespace baton::router {

// A request of a client at this router. Never reused; later arrivals have
// larger ones.
using RequestKey = uint64_t;

class ClientStream {
 public:
  virtual ~ClientStream() = default;

  // Queues a response. False when the client reads too slowly: its bound is
  // reached, and the response is lost.
  virtual bool Send(v1::GenerateResponse response) = 0;

  // Ends the stream after what is queued; called once, last. `retry_after` is
  // for refusals that are worth coming back from.
  virtual void Finish(const absl::Status& status,
                      std::optional<absl::Duration> retry_after) = 0;
};

}  // namespace baton::router
