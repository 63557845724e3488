// The transfers of a stress run as its driver knows them from what both sides
// say, and whether that may be: each side ends its transfer once, in the order
// that handoff_sender.h and handoff_receiver.h promise; what a sender was told
// has landed did land; and nobody takes much longer than the deadline. What may
// not be is a violation (notes.h).
//
// One thread.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "absl/time/time.h"
#include "tests/stress/notes.h"
#include "tests/stress/worker_process.h"

namespace baton::stress {

class Ledger final {
 public:
  // A transfer that both workers know, or are being told of.
  struct Transfer {
    struct Side {
      uint64_t worker = 0;  // incarnation
      bool begun = false;
      bool succeeded = false;  // landed, acknowledged
      bool failed = false;
      // Ended, or nobody is there any more to end it.
      bool over = false;
      bool gone = false;
    };
    Side receiver, sender;
    int32_t num_blocks = 0;
    uint64_t holder = 0;
    int64_t deadline_ms = 0;
    absl::Time deadline;
  };
  struct Counts {
    uint64_t begun = 0, landed = 0, acked = 0;
    // By TransferOutcome, on both sides.
    std::array<uint64_t, 16> failed = {};
  };

  // A transfer that its receiver is asked to open now. Its tag.
  uint64_t Add(Transfer transfer);
  // Null: it is over on both sides.
  Transfer* Find(uint64_t tag);
  // The sender is told to start.
  void Started(uint64_t tag);

  // What a worker says of a transfer: opened, full, landed, refused, acked,
  // failed, quiesced. False: the note is of something else.
  bool Take(Role role, const Note& note);
  // A worker that is no more.
  void Gone(Role role, uint64_t incarnation);

  // Violates if a transfer should have been over for long. `undisturbed_since`
  // says of a worker since when it has had the time to end it; InfiniteFuture
  // while it has not.
  void CheckNothingHangs(
      absl::Time now,
      const std::function<absl::Time(Role, uint64_t)>& undisturbed_since) const;

  size_t num_open() const { return transfers_.size(); }
  // Of one receiver.
  int CountOf(uint64_t receiver) const;
  // One of those open; REQUIRES: there is one, draw is any number.
  uint64_t Pick(uint64_t draw) const;
  const Counts& counts() const { return counts_; }

 private:
  void Succeeded(uint64_t tag, Transfer::Side& side);
  void EraseIfOver(uint64_t tag);

  std::map<uint64_t, Transfer> transfers_;  // by tag
  uint64_t next_tag_ = 1;
  Counts counts_;
};

}  // namespace baton::stress
