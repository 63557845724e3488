// A two-sided channel between two processes: what one of them posts to send,
// the other posts to receive, and the two are matched by their order alone. It
// is the part of NCCL that the transport needs; the seam exists so that the
// transport's logic runs without a GPU, over a fake that injects faults.
//
// A communicator has two ranks, 0 and 1. It does what was posted one after
// another, in both directions: both ranks must post the same groups in the same
// order, each a send on one side and a receive of the same pieces on the other,
// or it hangs for ever.
//
// Threads: the functions are called from one thread at a time, and none waits.
// `on_news` may be called from any thread, also within a call of ours; it must
// not call back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace baton::kv_transfer {

// The most bytes that a unique id has.
inline constexpr size_t kMaxUniqueIdBytes = 128;

// Pieces that are sent or received as one, in order. Not empty, nor is one of
// them.
struct PostedGroup {
  uint64_t ticket = 0;
  bool is_send = false;
  std::vector<absl::Span<std::byte>> pieces;
};

// What happened since the last Poll.
struct CommunicatorNews {
  // Of rank 0, once: what rank 1 needs to join.
  std::string unique_id;
  // Once: both ranks have joined, Post is allowed.
  bool ready = false;
  // The tickets of groups that are done, in the order of posting.
  std::vector<uint64_t> done;
  // Not OK, once: nothing is done any more. It must be aborted.
  absl::Status failure;
  // Once, and the last news, after Abort: nothing of it reads or writes memory
  // any more.
  bool quiet = false;
};

class Communicator {
 public:
  // REQUIRES: its Poll said quiet.
  virtual ~Communicator() = default;

  // The memory of the pieces is read or written until the group is done, or
  // the communicator quiet. Once it failed or was aborted, a group is never
  // done. REQUIRES: its Poll said ready.
  virtual void Post(PostedGroup group) = 0;

  virtual CommunicatorNews Poll() = 0;

  // Ends it in whatever state it is, also while it is being created; quiet
  // follows, however long that takes. The other rank need not notice.
  virtual void Abort() = 0;
};

// Makes communicators.
class Communicators {
 public:
  virtual ~Communicators() = default;

  // Begins to create one. Rank 0 makes the unique id, and `unique_id` is empty;
  // rank 1 gets it. `on_news` is called when Poll has something to say that it
  // has not said; never after the communicator is destroyed.
  virtual std::unique_ptr<Communicator> Create(
      int rank, const std::string& unique_id,
      std::function<void()> on_news) = 0;
};

}  // namespace baton::kv_transfer
