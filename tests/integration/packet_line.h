// One direction of a slow network link: how long its packets take, and which of
// them are lost because too many wait. Packets leave one after another at the
// line's rate, then travel for `delay`, in order. Pure: the caller owns the
// packets' way in and out, and gives the time. One thread.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>

#include "absl/time/time.h"

namespace baton::test {

struct LineOptions {
  double bytes_per_second = 2.5e6;
  absl::Duration delay = absl::Milliseconds(20);
  // Bytes that wait for the line at most; what comes then is dropped.
  int64_t queue_bytes = 256 << 10;
};

class PacketLine final {
 public:
  // REQUIRES: a rate above 0.
  explicit PacketLine(const LineOptions& options);

  // Whether there was room for it.
  bool Push(std::string packet, absl::Time now);
  // The next packet that has arrived by now, if any.
  std::optional<std::string> Pop(absl::Time now);
  // When the next one arrives; InfiniteFuture when none is under way.
  absl::Time NextArrival() const;
  // Loses everything that waits or travels.
  void Clear(absl::Time now);

 private:
  struct Packet {
    std::string bytes;
    absl::Time arrives;
  };

  const LineOptions options_;
  // In the order of arrival. Bounded: by queue_bytes, and by what fits on the
  // line in `delay`.
  std::deque<Packet> packets_;
  // When the last byte that waits has left.
  absl::Time idle_from_ = absl::InfinitePast();
};

}  // namespace baton::test
