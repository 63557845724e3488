// What both sides of a hand-off share: how KV memory lies, what a commit says,
// how a transfer can end, and which settings the two state machines take.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "baton/v1/peer.pb.h"
#include "common/clock.h"
#include "common/ids.h"

namespace baton::kv_transfer {

// A part of what a page holds of one head: `rows` rows, each of `unit_bytes`
// for every 16 tokens of the block.
struct PageSection {
  int32_t rows = 1;
  int64_t unit_bytes = 0;
};

class PageHasher;

// KV memory as the hand-off sees it: for each layer, num_blocks pages; page b
// of layer l begins at l * layer_stride_bytes + b * page_bytes. A page holds
// heads one after another, each as its sections. What two peers must have in
// common (num_layers, sections) follows from fingerprints that fit; num_blocks,
// the tokens of a block and which heads a worker has are its own
// (kv_transfer/page_map.h).
struct KvGeometry {
  absl::Span<std::byte> memory;
  // By which peers on this host can read the memory
  // (Transport::RegisterRegion), or -1.
  int descriptor = -1;
  int32_t num_layers = 0;
  int64_t layer_stride_bytes = 0;
  int64_t page_bytes = 0;
  int32_t num_blocks = 0;
  // Empty: not known; peers must then have blocks of the same size.
  std::vector<PageSection> sections;
  // Whether sections hold bf16 elements and nothing else.
  bool bf16 = false;
  // Set where `memory` is a device's, which the CPU neither reads nor writes:
  // who hashes pages there. It outlives the hand-off.
  PageHasher* hasher = nullptr;
  // With that: more of the same memory, in which nothing is kept, for what is
  // sent to measure links (link_probe.h); LinkProbe::kMaxPayloadBytes.
  absl::Span<std::byte> spare;

  uint64_t PageOffset(int32_t layer, BlockId block) const {
    return static_cast<uint64_t>(layer * layer_stride_bytes +
                                 block * page_bytes);
  }
};

// CHECK-fails unless every page lies within the memory and no two overlap.
void CheckGeometry(const KvGeometry& kv);

// What the prefill worker hands over besides KV.
struct CommitRecord {
  // The token that the prefill worker sampled.
  TokenId first_token = 0;
  // The sampler's state: draws are keyed by (seed, token index), so the index
  // of the next token to draw is all of it.
  uint32_t next_token_index = 0;
  // Tokens whose KV the sequence's blocks hold.
  uint32_t num_tokens = 0;
};

// Whose KV a transfer moves, for the lines of the log; empty: not known.
struct TransferOwner {
  std::string request;
  std::string trace_id;
};

// How a transfer ended. The numbers go over the wire.
enum class TransferOutcome : uint32_t {
  kOk = 0,
  // The worker on one side gave up: client gone, sibling leg failed, ...
  kCancelled = 1,
  kDeadlineExceeded = 2,
  // The receiver has no such transfer (any more), or another generation of it.
  kUnknownTransfer = 3,
  // The transfer belongs to another peer.
  kWrongPeer = 4,
  // A layer, block or size that the transfer does not have.
  kOutOfRange = 5,
  // The commit counts other layers, blocks or bytes than were reserved.
  kCountsDiffer = 6,
  kChecksumMismatch = 7,
  // The transport could not deliver.
  kTransportFailed = 8,
  kPeerLost = 9,
  // Nobody was heard of who wants the transfer.
  kLeaseExpired = 10,
};

// Stable lower-case name ("checksum_mismatch"), for labels and logs.
const char* TransferOutcomeName(TransferOutcome outcome);

// How KV goes over the wire. The numbers do, too.
enum class WireEncoding : uint32_t {
  // Byte for byte as it lies in the cache.
  kExact = 0,
  // A byte for each bf16 element, scaled by head, key or value, and block.
  kInt8 = 1,
  kFp8 = 2,  // e4m3
};

// What keeps the bytes of one transfer out of the answer of another. Tests take
// them away one at a time, to see that each is needed (docs/testing.md).
enum class Fence {
  kNone,
  // A message counts only for the generation that it names.
  kGeneration,
  // Blocks come back only when no posted receive can write to them any more.
  kQuarantine,
  // A commit counts only when all pages came and the checksum is right.
  kCommitCheck,
};

// Which transfers go over the wire in another form than the cache has
// (kv_transfer/wire_encoding.h). That costs precision: an answer may then
// depend on which link its KV took.
struct WirePolicy {
  WireEncoding encoding = WireEncoding::kExact;
  // Only on links that were measured slower than this. Never where both ends
  // share memory.
  double below_bytes_per_second = 0;
};

// Settings of HandoffSender and HandoffReceiver.
struct HandoffOptions {
  // Role, incarnation, name, heads and fingerprint of this worker.
  v1::PeerHello self;
  KvGeometry kv;
  // Called, from any thread and with no lock held, when Poll() has something
  // new after it was empty. Must not block; may be empty.
  std::function<void()> wake;
  const Clock* clock = Clock::Monotonic();
  // When the lease of a holder runs out (OpenTransfer::holder): called on the
  // progress thread, must not block. Empty: leases do not end.
  std::function<absl::Time(uint64_t holder)> lease_until;
  // Called on a progress thread a few dozen times a second, while all of them
  // come by: proof of their life. Must not block; may be empty.
  std::function<void()> ticked;
  // A peer that has not said hello (or answered ours) by then is closed.
  absl::Duration hello_timeout = absl::Seconds(5);
  // A transfer that ended but still has bytes on the wire after this long has
  // its peer closed by force, which ends them.
  absl::Duration quarantine_timeout = absl::Seconds(2);
  // The sender closes a peer that owes it completions or an answer, and has
  // given none for this long: a cut network is noticed by nothing else. So does
  // a receiver on a device whose kernels wait for a payload
  // (KvGeometry::hasher),
  // ten times as late before the first one has come.
  absl::Duration stall_timeout = absl::InfiniteDuration();
  // Most transfers at once, quarantined ones included.
  uint32_t max_transfers = 4096;
  // With more events than this waiting for Poll(), new transfers and new
  // connections are refused. Each of those that exist adds two at most, and
  // with report_layers one more for each layer.
  uint32_t max_waiting_events = 16384;
  // Whether the sender measures each link once it is paired, and the receiver
  // sets memory aside for that.
  bool probe_links = false;
  // Whether the receiver reports each layer of a transfer that is there, for
  // who moves them on at once.
  bool report_layers = false;
  // Of the sender. Needs probe_links, and KV memory in bf16.
  WirePolicy wire;
  // For tests only: the receiver goes without this one.
  Fence removed_fence = Fence::kNone;
};

// Whether the lease of `holder`, where there is one, has run out.
bool LeaseExpired(const HandoffOptions& options,
                  const std::optional<uint64_t>& holder, absl::Time now);

// InvalidArgument when `self` is too long to be said, or the wire policy asks
// for what this KV memory does not have, or what a device cannot do.
// CHECK-fails on a geometry that does not hold.
absl::Status CheckOptions(const HandoffOptions& options);

}  // namespace baton::kv_transfer
