// What one data connection is worth: its latency and bandwidth, measured by the
// sending side right after pairing.
//
//   1. kPings messages without payload, one after another: the shortest way
//      there and back. The latency is half of it.
//   2. kBursts payloads at once: the bandwidth is their size over the time from
//      the first one's sending to the last one's answer.
//
// The receiver takes the payloads into memory of its own that holds nothing,
// and answers each message. A probe that gets no answers ends without a result.
//
// Pure: the caller sends, gives the time, and is one thread.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/time/time.h"
#include "kv_transfer/wire.h"

namespace baton::kv_transfer {

struct LinkSpeed {
  absl::Duration latency;
  double bytes_per_second = 0;
};

class LinkProbe final {
 public:
  static constexpr uint32_t kPings = 4;
  static constexpr uint32_t kBursts = 16;
  static constexpr uint64_t kMaxPayloadBytes = uint64_t{1} << 20;
  static constexpr absl::Duration kPatience = absl::Seconds(5);

  // What is to be sent now: a message with sequence number `first`, and the
  // `count` - 1 next ones.
  struct Step {
    uint32_t first = 0;
    uint32_t count = 0;
    bool with_payload = false;
  };

  // `payload_bytes` of each burst message. Begin with Start's step.
  LinkProbe(uint64_t payload_bytes, absl::Time now);

  Step Start() const { return {.first = 0, .count = 1}; }
  // An answer came. Nothing to send: count is 0.
  Step OnReply(uint32_t sequence, absl::Time now);

  // Once all answers came.
  const std::optional<LinkSpeed>& result() const { return result_; }
  uint64_t payload_bytes() const { return payload_bytes_; }
  bool Late(absl::Time now) const { return now >= started_ + kPatience; }

 private:
  const uint64_t payload_bytes_;
  const absl::Time started_;
  absl::Time sent_;    // the last ping, or the first payload
  uint32_t next_ = 0;  // the ping that is awaited; kPings: the payloads are
  uint32_t payloads_answered_ = 0;
  absl::Duration shortest_ = absl::InfiniteDuration();
  std::optional<LinkSpeed> result_;
};

}  // namespace baton::kv_transfer
