// Transports that exchange bytes within one process, one step at a time, and do
// the evil that a network does: lose, delay, repeat, reorder, alter, die.
//
// Nothing happens by itself: Step() performs one event and calls the handlers
// on the calling thread, which thereby is the progress thread of all of them.
// With the same seed and the same calls, the same happens. The functions of the
// transports themselves may be called from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "kv_transfer/region_table.h"
#include "kv_transfer/transport.h"

namespace baton::kv_transfer {

class FakeTransport;

class FakeNetwork final {
 public:
  static constexpr uint64_t kMaxHeaderBytes = 4096;
  static constexpr uint64_t kMaxPayloadBytes = uint64_t{1} << 20;
  static constexpr uint32_t kMaxPayloadExtents = 64;
  static constexpr uint32_t kMaxSendsInFlight = 4;
  static constexpr uint32_t kMaxSendsOutstanding = 64;

  enum class Fate {
    kDeliver,
    // The sender sees an ordinary completion, the receiver nothing.
    kDrop,
    kDuplicate,
    // Waits for Release().
    kHold,
    // One bit of the payload changes on the way.
    kCorruptPayload,
    // One byte of the header changes on the way.
    kCorruptHeader,
    // Once accepted, the payload is written after Release() only.
    kHoldLanding,
    // Delivered; a copy, with the payload as it is now, arrives a second time
    // after ReleaseCopies().
    kCopyLater,
  };

  explicit FakeNetwork(uint64_t seed = 1) : random_(seed) {}
  FakeNetwork(const FakeNetwork&) = delete;
  FakeNetwork& operator=(const FakeNetwork&) = delete;

  // Must not outlive the network. `listen`: has an address to connect to: a new
  // one, or `address`, that of a transport that is gone.
  std::unique_ptr<Transport> CreateTransport(bool listen,
                                             const std::string& address = "");

  // Performs one event; false when there is none that may happen now.
  bool Step();
  // OnTick of every transport that started, or of one.
  void Tick();
  void Tick(Transport* transport);
  // Steps until nothing is left to do.
  void RunUntilIdle();

  // Decides the fate of each message when it is sent, with its header and
  // whether it has a payload. Null: all are delivered.
  std::function<Fate(ByteSpan header, bool has_payload)> judge;
  // Hears of each message that arrives: where, whether it is a copy that came
  // later, and whether a payload was accepted.
  struct Arrival {
    const Transport* at = nullptr;
    ByteSpan header;
    bool has_payload = false;
    bool late_copy = false;
    bool accepted = false;
  };
  std::function<void(const Arrival&)> on_arrival;
  // TransportProperties, of transports that are created from now on.
  bool prefers_runs = false;
  // Whether the next event is drawn at random instead of being the oldest.
  bool reorder = false;
  // While set, payloads that were accepted stay on the wire: their memory is
  // still the transport's.
  bool hold_landings = false;
  // Whether the two ends of a connection that ends hear of it one after the
  // other, as events of their own, and not at once.
  bool notice_apart = false;
  // Lets what judge() held go its way.
  void Release();
  // The copies that judge() asked for arrive now, before all else, in order.
  void ReleaseCopies();

  // Its process is gone: its handler is never called again, its peers see the
  // connection end. Nothing of it is written or read any more.
  void Kill(Transport* transport);
  // Its process stands still: nothing reaches it until it goes on.
  void SetStalled(Transport* transport, bool stalled);
  // Ends a connection drawn at random; false when there is none.
  // REQUIRES: notice_apart.
  bool BreakConnection();

  // The payloads that `transport` accepted and that are not complete: where
  // they may still be written.
  std::vector<absl::Span<const std::byte>> OpenLandings(
      const Transport* transport) const;
  // The payloads that it sends and that it has not been told are sent: what may
  // still be read.
  std::vector<absl::Span<const std::byte>> OpenSends(
      const Transport* transport) const;

 private:
  friend class FakeTransport;

  struct End {
    // Null once its process is gone.
    FakeTransport* transport = nullptr;
    PeerId peer{};
    bool up = false;
    // It was told that the connection ended, or will never hear of it.
    bool over = false;
    uint32_t sends_outstanding = 0;
  };
  struct Link {
    End ends[2];  // [0] connected to [1]
    std::string address;
    // Nothing sent from now on arrives, nothing lands.
    bool broken = false;
  };
  // One message from send to completion.
  struct Flight {
    int from = 0;  // which end of the link
    std::string header;
    std::vector<Extent> source;
    uint64_t cookie = 0;
    // A repetition: its sender heard of the original. Its payload, as it was
    // when it was sent.
    bool is_copy = false;
    bool is_late = false;
    std::string payload;
    Fate fate = Fate::kDeliver;
    // Set once the receiver accepted the payload.
    std::optional<Landing> landing;
    // The sender, the receiver has heard of its end.
    bool sent = false;
    bool landed = false;
    // Sent after the connection broke.
    bool lost = false;
  };
  struct Event {
    enum class Kind { kConnect, kClose, kArrive, kLand, kWake, kNotice };
    Kind kind{};
    Link* link = nullptr;
    FakeTransport* closer = nullptr;  // kClose; kWake: who is woken
    std::shared_ptr<Flight> flight;   // kArrive, kLand
    int end = 0;                      // kNotice: who is told
    bool by_itself = false;           // kNotice: it was the one who closed
  };

  absl::StatusOr<PeerId> Connect(FakeTransport* from,
                                 const std::string& address);
  absl::Status Send(FakeTransport* from, PeerId peer, ByteSpan header,
                    absl::Span<const Extent> payload, uint64_t cookie);
  void Close(FakeTransport* from, PeerId peer);
  void Wake(FakeTransport* transport);
  void Stop(FakeTransport* transport);

  std::optional<Event> TakeEvent() ABSL_LOCKS_EXCLUDED(mu_);
  void Connected(Link* link) ABSL_LOCKS_EXCLUDED(mu_);
  void Arrive(Link* link, std::shared_ptr<Flight> flight)
      ABSL_LOCKS_EXCLUDED(mu_);
  void Land(Link* link, Flight& flight) ABSL_LOCKS_EXCLUDED(mu_);
  // The sender's completion of `flight`.
  void Complete(Link* link, Flight& flight, const absl::Status& status)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Ends the link and everything on it.
  void TakeDown(Link* link, FakeTransport* closer) ABSL_LOCKS_EXCLUDED(mu_);
  bool IsHeld(const Event& event) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Link* FindLink(const FakeTransport* transport, PeerId peer, int* end)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The link is gone from here on.
  std::unique_ptr<Link> Extract(Link* link) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The receiver of `flight` hears that its landing failed; until then, the
  // transport may write to it.
  void FailLanding(Link* link, Flight& flight) ABSL_LOCKS_EXCLUDED(mu_);

  // With notice_apart:
  // The connection is broken; each end hears of it by an event.
  void Break(Link* link, const FakeTransport* closer)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // One end hears of it, and what it had under way completes.
  void Notice(Link* link, int end, bool by_itself) ABSL_LOCKS_EXCLUDED(mu_);
  // One end's process is gone, silently.
  void Detach(Link* link, int end) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Forgets the link once both ends are over.
  void DropIfOver(Link* link) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool IsHeldByItsLink(const Event& event) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  mutable absl::Mutex mu_;
  std::mt19937_64 random_ ABSL_GUARDED_BY(mu_);
  std::vector<FakeTransport*> transports_ ABSL_GUARDED_BY(mu_);
  std::vector<std::unique_ptr<Link>> links_ ABSL_GUARDED_BY(mu_);
  std::deque<Event> events_ ABSL_GUARDED_BY(mu_);
  std::vector<Event> copies_ ABSL_GUARDED_BY(mu_);
  uint64_t next_peer_ ABSL_GUARDED_BY(mu_) = 1;
  int next_port_ ABSL_GUARDED_BY(mu_) = 1;
};

}  // namespace baton::kv_transfer
