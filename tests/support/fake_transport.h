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
  };

  explicit FakeNetwork(uint64_t seed = 1) : random_(seed) {}
  FakeNetwork(const FakeNetwork&) = delete;
  FakeNetwork& operator=(const FakeNetwork&) = delete;

  // Must not outlive the network. `listen`: has an address to connect to.
  std::unique_ptr<Transport> CreateTransport(bool listen);

  // Performs one event; false when there is none that may happen now.
  bool Step();
  // OnTick of every transport that started.
  void Tick();
  // Steps until nothing is left to do.
  void RunUntilIdle();

  // Decides the fate of each message when it is sent, with its header and
  // whether it has a payload. Null: all are delivered.
  std::function<Fate(ByteSpan header, bool has_payload)> judge;
  // Whether the next event is drawn at random instead of being the oldest.
  bool reorder = false;
  // While set, payloads that were accepted stay on the wire: their memory is
  // still the transport's.
  bool hold_landings = false;
  // Lets what judge() held go its way.
  void Release();

  // Its process is gone: its handler is never called again, its peers see the
  // connection end.
  void Kill(Transport* transport);

 private:
  friend class FakeTransport;

  struct End {
    FakeTransport* transport = nullptr;
    PeerId peer{};
    bool up = false;
    uint32_t sends_outstanding = 0;
  };
  struct Link {
    End ends[2];  // [0] connected to [1]
    std::string address;
  };
  // One message from send to completion.
  struct Flight {
    int from = 0;  // which end of the link
    std::string header;
    std::vector<Extent> source;
    uint64_t cookie = 0;
    // A repetition: its sender heard of the original.
    bool is_copy = false;
    Fate fate = Fate::kDeliver;
    // Set once the receiver accepted the payload.
    std::optional<Landing> landing;
  };
  struct Event {
    enum class Kind { kConnect, kClose, kArrive, kLand, kWake };
    Kind kind{};
    Link* link = nullptr;
    FakeTransport* closer = nullptr;  // kClose; kWake: who is woken
    std::shared_ptr<Flight> flight;   // kArrive, kLand
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
  void Complete(Link* link, const Flight& flight, const absl::Status& status)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Ends the link and everything on it.
  void TakeDown(Link* link, FakeTransport* closer) ABSL_LOCKS_EXCLUDED(mu_);
  bool IsHeld(const Event& event) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Link* FindLink(const FakeTransport* transport, PeerId peer, int* end)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  absl::Mutex mu_;
  std::mt19937_64 random_ ABSL_GUARDED_BY(mu_);
  std::vector<FakeTransport*> transports_ ABSL_GUARDED_BY(mu_);
  std::vector<std::unique_ptr<Link>> links_ ABSL_GUARDED_BY(mu_);
  std::deque<Event> events_ ABSL_GUARDED_BY(mu_);
  uint64_t next_peer_ ABSL_GUARDED_BY(mu_) = 1;
  int next_port_ ABSL_GUARDED_BY(mu_) = 1;
};

}  // namespace baton::kv_transfer
