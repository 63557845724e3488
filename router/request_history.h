// The requests that ended not long ago, for `baton explain`: a ring, bounded by
// number and by bytes.
//
// Used by the router's loop thread only. No prompt, no answer, no key is kept.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "baton/v1/inference.pb.h"
#include "router/answer_options.h"
#include "router/placement_log.h"
#include "scheduling/request.h"

namespace baton::router {

struct EndedRequest {
  std::string id;
  std::string trace_id;
  absl::Time received_at;  // monotonic
  PlacementLog placements;
  v1::Usage usage;
  v1::Timing timing;
  scheduling::FinishReason reason = scheduling::FinishReason::kError;
  std::string error;
  std::string adapter;  // as AnswerOptions
  // What the client wanted; zero: nothing.
  absl::Duration ttft_target;
  absl::Duration itl_target;
  RequestClass request_class = RequestClass::kInteractive;

  // Roughly what it takes of memory, with its place in the history.
  size_t ByteSize() const;
};

class RequestHistory final {
 public:
  struct Options {
    size_t max_requests = 4096;
    size_t max_bytes = size_t{16} << 20;
  };

  explicit RequestHistory(const Options& options) : options_(options) {}

  // Drops the oldest ones to make room; also this one when it is larger than
  // all the room there is.
  void Add(EndedRequest request);

  // The newest of that id, or null. Valid until the next Add.
  const EndedRequest* Find(absl::string_view id) const;

  size_t size() const { return ring_.size(); }
  size_t bytes() const { return bytes_; }

 private:
  void DropOldest();

  const Options options_;
  std::deque<EndedRequest> ring_;  // oldest first
  // Requests that ever were in front of ring_.front().
  uint64_t dropped_ = 0;
  // The newest of each id: how many were added before it.
  absl::flat_hash_map<std::string, uint64_t> newest_;
  size_t bytes_ = 0;
};

}  // namespace baton::router
