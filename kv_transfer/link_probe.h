// What one data connection is worth: its latency and bandwidth, measured once
// by the sending side (link_meter.h says when). Cheap, because KV goes by the
// same connection: one message at a time, so that KV waits behind one at most,
// and none larger than the link deserves.
//
//   1. kPings messages without payload: the shortest way there and back. The
//      latency is half of it.
//   2. kSamples payloads of the smallest size: the shortest time is what any
//      payload costs, however small.
//   3. Payloads of four times the size of those before, until kSamples of one
//      size all take longer than the smallest by kLongEnough and by a quarter
//      of that one's time, or are as large as they get.
//   4. The bandwidth is what these have more than the smallest, in bytes over
//      time, each at its shortest. Where that is faster than anything is, the
//      smallest ones were held up, and it is all of the time that counts.
//
// The shortest of several is the one that nothing disturbed: the first ones pay
// for memory that was never touched and threads that slept. 3 to 4 MiB go over
// at most, and on a slow link far less.
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
  static constexpr uint32_t kSamples = 3;
  static constexpr uint64_t kSmallestBytes = uint64_t{4} << 10;
  static constexpr uint64_t kMaxPayloadBytes = uint64_t{1} << 20;
  static constexpr uint64_t kGrowth = 4;
  static constexpr absl::Duration kLongEnough = absl::Milliseconds(1);
  static constexpr absl::Duration kPatience = absl::Seconds(5);

  // What is to be sent now: nothing, or one message, without payload when
  // payload_bytes is 0.
  struct Step {
    bool send = false;
    uint32_t sequence = 0;
    uint64_t payload_bytes = 0;
  };

  // Payloads have at most `max_payload_bytes` (> 0). Begin with Start's step,
  // at `now`.
  LinkProbe(uint64_t max_payload_bytes, absl::Time now);

  Step Start() const { return {.send = true}; }
  // An answer came; it counts when it is to the message sent last.
  Step OnReply(uint32_t sequence, absl::Time now);

  // Once enough answers came.
  const std::optional<LinkSpeed>& result() const { return result_; }
  bool Late(absl::Time now) const { return now >= started_ + kPatience; }

 private:
  // The shortest of what payloads of `bytes` took.
  struct Samples {
    uint64_t bytes = 0;
    uint32_t count = 0;
    absl::Duration shortest = absl::InfiniteDuration();

    void Add(absl::Duration took);
  };

  Step Send(uint64_t payload_bytes, absl::Time now);
  bool TookLongEnough() const;

  const uint64_t max_payload_bytes_;
  const absl::Time started_;
  // Of the message that is awaited.
  uint32_t sequence_ = 0;
  absl::Time sent_;
  Samples pings_;
  Samples smallest_;
  Samples larger_;  // of the size that it has come to
  std::optional<LinkSpeed> result_;
};

}  // namespace baton::kv_transfer
