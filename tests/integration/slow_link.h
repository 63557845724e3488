// A slow, lossy or dead network link between two network namespaces, in user
// space: a TUN device at each end and a thread that carries IP packets from one
// to the other as PacketLine says. For kernels without traffic control.
//
// The devices live as long as the object, or its process: they cannot be left
// behind. Any thread may call; one internal thread carries.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/scoped_fd.h"
#include "tests/integration/packet_line.h"

namespace baton::test {

class SlowLink final {
 public:
  struct End {
    // Of `ip netns`; empty: the one this process is in.
    std::string network_namespace;
    // "10.1.2.1/24"; both ends in one network.
    std::string address;
  };
  // Of packets in both directions.
  struct Stats {
    int64_t bytes_delivered = 0;
    int64_t packets_dropped = 0;  // the queue was full
    int64_t packets_cut = 0;      // lost while the link was cut
  };

  // `line` holds for each direction. Errors say what this machine does not
  // allow: PermissionDenied, NotFound, ...
  static absl::StatusOr<std::unique_ptr<SlowLink>> Create(
      const End& a, const End& b, const LineOptions& line);
  ~SlowLink();
  SlowLink(const SlowLink&) = delete;
  SlowLink& operator=(const SlowLink&) = delete;

  // From now on, and for `how_long` or until Heal(), every packet is lost, also
  // what is under way. The devices stay up: nobody is told.
  void Cut(absl::Duration how_long = absl::InfiniteDuration());
  void Heal();

  Stats stats() const;

 private:
  SlowLink(std::array<ScopedFd, 2> devices, ScopedFd wake,
           const LineOptions& line);

  void Run();
  // Takes what came in at `from`. The carrying thread.
  void Accept(int from, absl::Time now) ABSL_LOCKS_EXCLUDED(mu_);
  // Puts out what has arrived at the other end.
  void Deliver(int from, absl::Time now) ABSL_LOCKS_EXCLUDED(mu_);
  // Whether the link is cut; if so, what is under way is lost.
  bool LoseAllIfCut(absl::Time now) ABSL_LOCKS_EXCLUDED(mu_);
  // Until something comes in, something arrives, or Wake().
  void Sleep(absl::Time now);
  void Wake();

  const std::array<ScopedFd, 2> devices_;
  const ScopedFd wake_;
  // The carrying thread's: from device i to the other one.
  std::array<PacketLine, 2> lines_;

  mutable absl::Mutex mu_;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  absl::Time cut_until_ ABSL_GUARDED_BY(mu_) = absl::InfinitePast();
  Stats stats_ ABSL_GUARDED_BY(mu_);

  std::thread thread_;  // last: it uses all of the above
};

}  // namespace baton::test
