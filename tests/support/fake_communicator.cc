#include "tests/support/fake_communicator.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/log.h"

namespace baton::kv_transfer {
namespace {

std::string SizesOf(const PostedGroup& group) {
  std::vector<size_t> sizes;
  for (absl::Span<std::byte> piece : group.pieces)
    sizes.push_back(piece.size());
  return absl::StrJoin(sizes, ",");
}

}  // namespace

class FakeCommunicator final : public Communicator {
 public:
  FakeCommunicator(FakeFabric* fabric, int rank, const std::string& unique_id,
                   std::function<void()> on_news)
      : fabric_(fabric),
        rank_(rank),
        pair_(fabric->Join(rank, unique_id, std::move(on_news))) {}
  ~FakeCommunicator() override {
    CHECK(quiet_) << "a communicator is destroyed before it is quiet";
    fabric_->Leave(pair_, rank_);
  }

  void Post(PostedGroup group) override {
    CHECK(ready_) << "a post before it is ready";
    CHECK(!group.pieces.empty());
    fabric_->Post(pair_, rank_, std::move(group));
  }
  CommunicatorNews Poll() override {
    CommunicatorNews news = fabric_->Poll(pair_, rank_);
    ready_ = ready_ || news.ready;
    quiet_ = quiet_ || news.quiet;
    return news;
  }
  void Abort() override { fabric_->Abort(pair_, rank_); }

 private:
  FakeFabric* const fabric_;
  const int rank_;
  FakeFabric::Pair* const pair_;
  bool ready_ = false;
  bool quiet_ = false;
};

class FakeCommunicators final : public Communicators {
 public:
  explicit FakeCommunicators(FakeFabric* fabric) : fabric_(fabric) {}
  std::unique_ptr<Communicator> Create(int rank, const std::string& unique_id,
                                       std::function<void()> on_news) override {
    return std::make_unique<FakeCommunicator>(fabric_, rank, unique_id,
                                              std::move(on_news));
  }

 private:
  FakeFabric* const fabric_;
};

FakeFabric::~FakeFabric() {
  absl::MutexLock lock(&mu_);
  CHECK_EQ(alive_, 0) << "communicators outlive their fabric";
}

std::unique_ptr<Communicators> FakeFabric::CreateEnd() {
  return std::make_unique<FakeCommunicators>(this);
}

void FakeFabric::HoldCreation(bool hold) {
  absl::MutexLock lock(&mu_);
  hold_creation_ = hold;
  TellAll();
}

void FakeFabric::HoldPosts(bool hold) {
  absl::MutexLock lock(&mu_);
  hold_posts_ = hold;
  TellAll();
}

void FakeFabric::HoldAborts(bool hold) {
  absl::MutexLock lock(&mu_);
  hold_aborts_ = hold;
  TellAll();
}

void FakeFabric::FailCreation(absl::Status why) {
  absl::MutexLock lock(&mu_);
  fail_creation_ = std::move(why);
}

void FakeFabric::Fail(int rank, const absl::Status& why) {
  absl::MutexLock lock(&mu_);
  for (auto& [id, pair] : pairs_) {
    Side& side = pair->sides[rank];
    if (!side.joined || side.gone) continue;
    FailSide(side, why);
    side.on_news();
  }
}

void FakeFabric::SetReach(std::function<std::byte*(std::byte*)> reach) {
  absl::MutexLock lock(&mu_);
  reach_ = std::move(reach);
}

std::vector<std::string> FakeFabric::complaints() const {
  absl::MutexLock lock(&mu_);
  return complaints_;
}

std::vector<std::string> FakeFabric::copied() const {
  absl::MutexLock lock(&mu_);
  return copied_;
}

int FakeFabric::created() const {
  absl::MutexLock lock(&mu_);
  return created_;
}

int FakeFabric::alive() const {
  absl::MutexLock lock(&mu_);
  return alive_;
}

int FakeFabric::posted() const {
  absl::MutexLock lock(&mu_);
  int posted = 0;
  for (const auto& [id, pair] : pairs_) {
    posted += pair->sides[0].posted.size() + pair->sides[1].posted.size();
  }
  return posted;
}

FakeFabric::Pair* FakeFabric::Join(int rank, const std::string& unique_id,
                                   std::function<void()> on_news) {
  absl::MutexLock lock(&mu_);
  CHECK(rank == 0 || rank == 1);
  CHECK_EQ(unique_id.empty(), rank == 0);
  ++created_;
  ++alive_;
  const std::string id =
      rank == 0 ? absl::StrCat("fake communicator ", created_) : unique_id;
  // An id that nobody made is that of a pair that never meets.
  std::unique_ptr<Pair>& pair = pairs_[id];
  if (pair == nullptr) pair = std::make_unique<Pair>();
  Side& side = pair->sides[rank];
  CHECK(!side.joined) << "two of rank " << rank;
  side.joined = true;
  side.on_news = std::move(on_news);
  if (rank == 0) side.news.unique_id = id;
  if (!fail_creation_.ok()) FailSide(side, fail_creation_);
  side.on_news();
  return pair.get();
}

void FakeFabric::Leave(Pair* pair, int rank) {
  absl::MutexLock lock(&mu_);
  pair->sides[rank].gone = true;
  pair->sides[rank].on_news = nullptr;
  --alive_;
}

void FakeFabric::Post(Pair* pair, int rank, PostedGroup group) {
  absl::MutexLock lock(&mu_);
  Side& side = pair->sides[rank];
  if (side.aborted || side.failed) return;
  for (const PostedGroup& other : side.posted) {
    CHECK_NE(other.ticket, group.ticket) << "a ticket is used twice";
  }
  side.posted.push_back(std::move(group));
  side.on_news();
}

CommunicatorNews FakeFabric::Poll(Pair* pair, int rank) {
  absl::MutexLock lock(&mu_);
  Progress(*pair);
  return std::exchange(pair->sides[rank].news, {});
}

void FakeFabric::Abort(Pair* pair, int rank) {
  absl::MutexLock lock(&mu_);
  Side& side = pair->sides[rank];
  CHECK(!side.aborted) << "aborted twice";
  side.aborted = true;
  side.on_news();
}

void FakeFabric::Progress(Pair& pair) {
  const auto lives = [](const Side& side) {
    return side.joined && !side.gone && !side.aborted && !side.failed;
  };
  if (lives(pair.sides[0]) && lives(pair.sides[1]) && !hold_creation_) {
    for (Side& side : pair.sides) {
      if (side.told_ready) continue;
      side.told_ready = true;
      side.news.ready = true;
      side.on_news();
    }
    if (!hold_posts_) Copy(pair);
  }
  for (Side& side : pair.sides) {
    if (side.joined && !side.gone && side.aborted && !hold_aborts_) {
      BecomeQuiet(side);
    }
  }
}

void FakeFabric::Copy(Pair& pair) {
  while (!pair.sides[0].posted.empty() && !pair.sides[1].posted.empty()) {
    const PostedGroup& zero = pair.sides[0].posted.front();
    const PostedGroup& one = pair.sides[1].posted.front();
    if (zero.is_send == one.is_send || SizesOf(zero) != SizesOf(one)) {
      complaints_.push_back(absl::StrCat(
          "rank 0 ", zero.is_send ? "sends " : "receives ", SizesOf(zero),
          ", rank 1 ", one.is_send ? "sends " : "receives ", SizesOf(one)));
      for (Side& side : pair.sides) {
        FailSide(side, absl::InternalError(complaints_.back()));
        side.on_news();
      }
      return;
    }
    const PostedGroup& from = zero.is_send ? zero : one;
    const PostedGroup& to = zero.is_send ? one : zero;
    for (size_t i = 0; i < from.pieces.size(); ++i) {
      std::memcpy(At(to.pieces[i]), At(from.pieces[i]), from.pieces[i].size());
    }
    copied_.push_back(
        absl::StrCat(zero.is_send ? "0>1:" : "1>0:", SizesOf(from)));
    for (Side& side : pair.sides) {
      side.news.done.push_back(side.posted.front().ticket);
      side.posted.pop_front();
      side.on_news();
    }
  }
}

void FakeFabric::FailSide(Side& side, const absl::Status& why) {
  if (side.failed) return;
  side.failed = true;
  side.news.failure = why;
}

std::byte* FakeFabric::At(absl::Span<std::byte> piece) {
  return reach_ ? reach_(piece.data()) : piece.data();
}

void FakeFabric::BecomeQuiet(Side& side) {
  if (std::exchange(side.told_quiet, true)) return;
  // Until it says so, it may write to what was posted.
  for (const PostedGroup& group : side.posted) {
    if (group.is_send) continue;
    for (absl::Span<std::byte> piece : group.pieces) {
      std::memset(At(piece), 0xEE, piece.size() / 2 + 1);
    }
  }
  side.posted.clear();
  side.news.quiet = true;
  side.on_news();
}

void FakeFabric::TellAll() {
  for (auto& [id, pair] : pairs_) {
    for (Side& side : pair->sides) {
      if (side.joined && !side.gone) side.on_news();
    }
  }
}

}  // namespace baton::kv_transfer
