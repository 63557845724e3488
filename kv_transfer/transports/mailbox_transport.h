// What transports with one progress thread have in common: regions, the way of
// other threads to that thread, and its life. What the thread does is each
// transport's own.
//
// Threads: as Transport.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "kv_transfer/region_table.h"
#include "kv_transfer/transport.h"
#include "kv_transfer/transports/mailbox.h"

namespace baton::kv_transfer {

class MailboxTransport : public Transport {
 public:
  const TransportProperties& properties() const final { return properties_; }
  absl::StatusOr<RegionId> RegisterRegion(absl::Span<std::byte> memory,
                                          int descriptor) override;
  void Start(TransportHandler* handler) override;
  void Stop() final;
  absl::StatusOr<PeerId> Connect(const std::string& address) final;
  absl::Status Send(PeerId peer, ByteSpan header,
                    absl::Span<const Extent> payload, uint64_t cookie) override;
  void ClosePeer(PeerId peer) final { mailbox_.PostClose(peer); }
  void Wake() final { mailbox_.PostWake(); }

 protected:
  MailboxTransport(uint32_t max_peers, uint32_t max_sends_outstanding)
      : mailbox_(max_peers, max_sends_outstanding) {}

  // Starts the progress thread, which ends when the mailbox says stop. The
  // destructor of whoever calls it must call Stop.
  void RunThread(std::function<void()> run) {
    thread_ = std::thread(std::move(run));
  }

  TransportProperties properties_;  // constant once peers can see it
  RegionTable regions_;
  Mailbox mailbox_;

 private:
  absl::Mutex stop_mu_;  // held while joining: Stop may be called twice
  std::thread thread_;
};

// InvalidArgument names the option that is out of bounds.
absl::Status CheckLimits(uint32_t max_peers, uint32_t max_sends_in_flight,
                         uint32_t max_sends_outstanding,
                         absl::Duration tick_interval);

}  // namespace baton::kv_transfer
