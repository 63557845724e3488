// How often a simulation came to each of the places that it is there for. What
// stays at 0 over a whole run is not tested, and the run fails.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"

namespace baton::sim {

enum class Covered {
  // Of requests.
  kFinished,
  kFinishedAfterRetry,
  kStoppedByText,
  kLogprobs,
  kPromptLogprobs,
  kPromptLogprobsInParts,  // another attempt went on with them
  kAdapted,                // with an adapter
  kCancelled,
  kDeadlinePassed,
  kGaveUp,
  kMigrated,  // went on elsewhere with output that the client had
  kRefused,
  kLocalPrefill,
  // Of parties.
  kRouterCrash,
  kPrefillCrash,
  kDecodeCrash,
  kStall,
  kDrain,
  kRoleChange,
  kBothSides,  // of a dual worker had attempts
  // Of the control network.
  kStreamBroken,
  kRouterGone,  // a worker heard that a router is gone
  kSilent,      // a router gave up a stream that stood
  // Of the data network.
  kConnectionBroken,
  kMessageLost,
  kMessageTwice,
  kMessageHeld,
  kMessageAltered,
  kPayloadAltered,
  kSlowLanding,
  kLateCopy,         // of a message that arrived before
  kLateCopyDropped,  // of a payload; it touched no memory
  kStaleGeneration,  // a message of an earlier use of its transfer slot
  // Of hand-offs.
  kLanded,
  kTransferFailed,
  kTornByPeerLoss,
  kChecksumMismatch,
  kQuarantined,  // blocks of an attempt that is over, not free yet
  kClosedByForce,
  kLeaseExpired,
  // Of workers whose KV lies on a device.
  kStagedSend,
  kStagedLanding,
  kRanAhead,
  kDualRanAhead,
  kOverAhead,  // a step had a sequence that was over before it ran
  kGuessed,    // a stream's step had guesses at its next tokens
  kGuessedRight,
  kModelGuessed,  // the engine guessed itself, with weights of fewer bits
  // Of decode workers that ran out of blocks.
  kPreempted,    // back to the router
  kSwapped,      // KV to the host's memory
  kBroughtBack,  // and from there
  // Of the prefix caches.
  kPrefillHit,     // a prompt was not computed from its beginning
  kSentEarly,      // a cached prefix went out before the rest was computed
  kDecodeHit,      // a grant asked for less than all
  kNothingToSend,  // a grant asked for nothing
  kEvicted,
  kPrefixKnown,  // in the end, to a router
  // Of what is stored besides.
  kStored,
  kStoreFailed,
  kStoreFull,
  kLoaded,
  kLoadedFromEarlierLife,
  kLoadFailed,
  kLoadGivenUp,
  kNumKinds,
};

inline constexpr std::array<const char*,
                            static_cast<size_t>(Covered::kNumKinds)>
    kCoveredNames = {"finished",
                     "finished_after_retry",
                     "stopped_by_text",
                     "logprobs",
                     "prompt_logprobs",
                     "prompt_logprobs_in_parts",
                     "adapted",
                     "cancelled",
                     "deadline_passed",
                     "gave_up",
                     "migrated",
                     "refused",
                     "local_prefill",
                     "router_crash",
                     "prefill_crash",
                     "decode_crash",
                     "stall",
                     "drain",
                     "role_change",
                     "both_sides",
                     "stream_broken",
                     "router_gone",
                     "silent",
                     "connection_broken",
                     "message_lost",
                     "message_twice",
                     "message_held",
                     "message_altered",
                     "payload_altered",
                     "slow_landing",
                     "late_copy",
                     "late_copy_dropped",
                     "stale_generation",
                     "landed",
                     "transfer_failed",
                     "torn_by_peer_loss",
                     "checksum_mismatch",
                     "quarantined",
                     "closed_by_force",
                     "lease_expired",
                     "staged_send",
                     "staged_landing",
                     "ran_ahead",
                     "dual_ran_ahead",
                     "over_ahead",
                     "guessed",
                     "guessed_right",
                     "model_guessed",
                     "preempted",
                     "swapped",
                     "brought_back",
                     "prefill_hit",
                     "sent_early",
                     "decode_hit",
                     "nothing_to_send",
                     "evicted",
                     "prefix_known",
                     "stored",
                     "store_failed",
                     "store_full",
                     "loaded",
                     "loaded_from_earlier_life",
                     "load_failed",
                     "load_given_up"};

class Coverage final {
 public:
  void Add(Covered what, int64_t times = 1) {
    counts_[static_cast<size_t>(what)] += times;
  }
  int64_t Of(Covered what) const { return counts_[static_cast<size_t>(what)]; }

  void Add(const Coverage& other) {
    for (size_t i = 0; i < counts_.size(); ++i) counts_[i] += other.counts_[i];
  }

  // Those that never happened; empty when all did.
  std::string Missing() const {
    std::string missing;
    for (size_t i = 0; i < counts_.size(); ++i) {
      if (counts_[i] == 0) absl::StrAppend(&missing, kCoveredNames[i], " ");
    }
    return missing;
  }
  std::string Describe() const {
    std::string all;
    for (size_t i = 0; i < counts_.size(); ++i) {
      absl::StrAppend(&all, kCoveredNames[i], " ", counts_[i], "\n");
    }
    return all;
  }

 private:
  std::array<int64_t, static_cast<size_t>(Covered::kNumKinds)> counts_{};
};

}  // namespace baton::sim
