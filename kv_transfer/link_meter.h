// What the link to one peer is worth, as far as is known: LinkProbes, when they
// are due, and what counts of them. The first comes when the pair is ready,
// which is when workers are busiest with other things; others follow soon, and
// then now and then for as long as the pair lives.
//
// What something else on the machines or on the network takes makes a link look
// slower than it is, and hardly anything makes it look faster. So the best of
// the last kRemembered measurements counts, of bandwidth and of latency each,
// and a link that has become slower is known as such after kRemembered *
// kEvery.
//
// Pure: the caller sends, gives the time, and is one thread.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>

#include "absl/time/time.h"
#include "kv_transfer/link_probe.h"
#include "kv_transfer/wire.h"

namespace baton::kv_transfer {

class LinkMeter final {
 public:
  static constexpr size_t kRemembered = 3;
  // From the end of the first measurement to the second, and of that to the
  // third; from then on kEvery.
  static constexpr absl::Duration kSecond = absl::Seconds(2);
  static constexpr absl::Duration kThird = absl::Seconds(8);
  static constexpr absl::Duration kEvery = absl::Seconds(60);
  // A smaller change is not worth telling anybody.
  static constexpr double kNews = 1.25;

  struct Send {
    wire::Probe message;
    uint64_t payload_bytes = 0;  // 0: without payload
  };

  // The first measurement is due at once. Payloads have at most
  // `max_payload_bytes` (> 0).
  LinkMeter(uint64_t max_payload_bytes, absl::Time now)
      : max_payload_bytes_(max_payload_bytes), due_(now) {}

  // Whether one is under way. One that gets no answers ends here, without a
  // result.
  bool Measures(absl::Time now);
  // Whether one may begin; REQUIRES that none is under way.
  bool Due(absl::Time now) const { return now >= due_; }
  // Begins one.
  Send Start(absl::Time now);
  // What is to be sent next, if anything. Answers to earlier measurements, and
  // twice the same, count for nothing.
  std::optional<Send> OnReply(const wire::ProbeReply& reply, absl::Time now);

  // What counts; nothing before the first measurement has ended.
  std::optional<LinkSpeed> speed() const;
  // The same, when it is first known, and then when it has changed by kNews
  // since this last gave it.
  std::optional<LinkSpeed> TakeNews();

 private:
  std::optional<Send> ToSend(const LinkProbe::Step& step) const;
  void End(absl::Time now);

  const uint64_t max_payload_bytes_;
  absl::Time due_;
  uint64_t num_started_ = 0;
  std::optional<LinkProbe> probe_;
  std::deque<LinkSpeed> last_;  // kRemembered at most, the newest at the end
  std::optional<LinkSpeed> told_;
};

}  // namespace baton::kv_transfer
