// Communicators within one process that copy bytes instead of asking a GPU, are
// as unforgiving as NCCL about order and sizes, and do what NCCL may do: not
// come into being, stand still, fail, take long to abort, write until they are
// quiet.
//
// Nothing happens by itself: bytes are copied in Poll, of either side, so that
// whoever drives the transports drives this too. What comes of the other side's
// Poll is news, as in NCCL.
//
// Threads: any.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "kv_transfer/transports/nccl/communicator.h"

namespace baton::kv_transfer {

class FakeCommunicator;

class FakeFabric final {
 public:
  FakeFabric() = default;
  FakeFabric(const FakeFabric&) = delete;
  FakeFabric& operator=(const FakeFabric&) = delete;
  ~FakeFabric();

  // For one transport; all that come from one fabric can meet. Must not outlive
  // the fabric.
  std::unique_ptr<Communicators> CreateEnd();

  // While set, no communicator becomes ready.
  void HoldCreation(bool hold);
  // While set, what is posted on both sides stays on the wire.
  void HoldPosts(bool hold);
  // While set, no abort comes to its end.
  void HoldAborts(bool hold);
  // Those that are created from now on fail at once; OK: not any more.
  void FailCreation(absl::Status why);
  // From now on: where the bytes of an address are, for memory that the CPU
  // cannot reach.
  void SetReach(std::function<std::byte*(std::byte*)> reach);
  // All of one rank that there are, or are being created, fail.
  void Fail(int rank, const absl::Status& why);

  // What NCCL would have hung or crashed on; the communicator failed instead.
  std::vector<std::string> complaints() const;
  // Groups that were copied, as "0>1:8000,500": from, to, the pieces' sizes.
  std::vector<std::string> copied() const;
  // Communicators that were created, and that there still are.
  int created() const;
  int alive() const;
  // Groups that are posted on either side and not done.
  int posted() const;

 private:
  friend class FakeCommunicator;
  friend class FakeCommunicators;

  // One rank of a pair.
  struct Side {
    bool joined = false;
    bool gone = false;  // destroyed
    bool told_ready = false;
    bool told_quiet = false;
    bool aborted = false;
    bool failed = false;
    std::deque<PostedGroup> posted;
    CommunicatorNews news;
    std::function<void()> on_news;
  };
  struct Pair {
    Side sides[2];
  };

  Pair* Join(int rank, const std::string& unique_id,
             std::function<void()> on_news);
  void Leave(Pair* pair, int rank);
  void Post(Pair* pair, int rank, PostedGroup group);
  CommunicatorNews Poll(Pair* pair, int rank);
  void Abort(Pair* pair, int rank);

  // Everything that can happen to a pair now, happens.
  void Progress(Pair& pair) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Copy(Pair& pair) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void FailSide(Side& side, const absl::Status& why)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Where its bytes are.
  std::byte* At(absl::Span<std::byte> piece) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void BecomeQuiet(Side& side) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // After the world has changed: all are to poll.
  void TellAll() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  mutable absl::Mutex mu_;
  bool hold_creation_ ABSL_GUARDED_BY(mu_) = false;
  bool hold_posts_ ABSL_GUARDED_BY(mu_) = false;
  bool hold_aborts_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status fail_creation_ ABSL_GUARDED_BY(mu_);
  std::vector<std::string> complaints_ ABSL_GUARDED_BY(mu_);
  std::vector<std::string> copied_ ABSL_GUARDED_BY(mu_);
  int created_ ABSL_GUARDED_BY(mu_) = 0;
  int alive_ ABSL_GUARDED_BY(mu_) = 0;
  std::function<std::byte*(std::byte*)> reach_ ABSL_GUARDED_BY(mu_);
  // By unique id. Never removed, as ids are never used again.
  std::map<std::string, std::unique_ptr<Pair>> pairs_ ABSL_GUARDED_BY(mu_);
};

}  // namespace baton::kv_transfer
