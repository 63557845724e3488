// The hand-off over a transport that writes as late as it may
// (tests/support/late_write_transport.h), with a pool that gives freed blocks
// to the next transfer at once. What must hold, whatever a seed brings: a write
// goes into blocks of its own transfer, never into those of a later one.
// Without the fence that holds blocks back, the same test must see one that
// does.
//
// BATON_LATE_WRITE_SEED runs that seed alone.
#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "scheduling/block_pool.h"
#include "tests/kv_transfer/handoff_pair.h"
#include "tests/support/late_write_transport.h"

namespace baton::kv_transfer {
namespace {

using scheduling::BlockPool;
using scheduling::PooledBlocks;

struct Report {
  std::optional<std::string> violation;
  int landed = 0, failed = 0, aborted = 0;
  // Writes of transfers that had ended already, as their receiver knew.
  int writes_after_the_end = 0;
  uint64_t writes_after_peer_down = 0;
};

class LateWrites : public HandoffPairTest {
 public:
  LateWrites(uint64_t seed, Fence removed) : random_(seed), removed_(removed) {}
  // Before what OnWrite() looks at: to stop is to write what was held.
  ~LateWrites() override {
    sender_.reset();
    receiver_.reset();
  }
  void TestBody() override {}
  void SetUp() override;

  Report Run();

 private:
  static constexpr int kRounds = 400;
  static constexpr int kMaxOpen = 8;
  static constexpr absl::Duration kQuarantine = absl::Milliseconds(300);

  struct Transfer {
    // The sender's blocks, and the receiver's.
    PooledBlocks source, target;
    std::vector<int32_t> ready = std::vector<int32_t>(kLayers);
    bool committed = false;
    bool over_here = false, over_there = false;
    // The receiver's word: it takes nothing more.
    bool ended_there = false;
    bool landed = false;
    // How much longer its sequence is decoded once it has landed.
    int rounds_left = 0;
  };

  int Below(int n) { return static_cast<int>(random_() % n); }
  bool Chance(int percent) { return Below(100) < percent; }
  void Violate(const std::string& what) {
    if (!report_.violation.has_value()) report_.violation = what;
  }

  LateWriteTransport::Hold Judge();
  void OnWrite(ByteSpan header, const LateWriteTransport::Spans& memory);
  void Begin();
  void Act(TransferId id, Transfer& transfer);
  void Disturb();
  void Collect();
  void CollectThere();
  void Decode();
  // Gives its blocks back, for the next one.
  void Free(TransferId id, Transfer& transfer);
  void BeQuiet();

  std::mt19937_64 random_;
  const Fence removed_;
  LateWriteTransport* late_ = nullptr;
  BlockPool source_pool_{kPoolBlocks}, target_pool_{kPoolBlocks};
  std::map<TransferId, Transfer> transfers_;
  // By the receiver's block.
  std::vector<std::optional<TransferId>> owners_{kPoolBlocks};
  uint64_t next_id_ = 1;
  bool paired_ = false;
  Report report_;
};

void LateWrites::SetUp() {
  network_.notice_apart = true;
  network_.reorder = true;
  LateWriteTransport::Options late;
  late.judge = [this](ByteSpan) { return Judge(); };
  late.on_write = [this](ByteSpan header, const auto& memory) {
    OnWrite(header, memory);
  };
  auto wrapped = std::make_unique<LateWriteTransport>(
      network_.CreateTransport(/*listen=*/true), std::move(late));
  late_ = wrapped.get();
  receiver_transport_ = std::move(wrapped);
  HandoffOptions options =
      Options(receiver_memory_, v1::WORKER_ROLE_DECODE, kDecode);
  options.quarantine_timeout = kQuarantine;
  options.removed_fence = removed_;
  receiver_ = *Receiver::Create(receiver_transport_.get(), options);
  sender_transport_ = network_.CreateTransport(/*listen=*/false);
  options = Options(sender_memory_, v1::WORKER_ROLE_PREFILL, kPrefill);
  options.quarantine_timeout = kQuarantine;
  sender_ = *Sender::Create(sender_transport_.get(), options);
}

LateWriteTransport::Hold LateWrites::Judge() {
  LateWriteTransport::Hold hold;
  hold.show = Chance(50);
  hold.ticks = Chance(40) ? 0 : Below(12);
  hold.until_peer_down = Below(200) == 0;
  return hold;
}

void LateWrites::OnWrite(ByteSpan header,
                         const LateWriteTransport::Spans& memory) {
  const auto message = wire::Decode(header);
  CHECK(message.ok()) << message.status();
  const TransferId id = std::get<wire::Kv>(message->body).transfer;
  const Transfer& transfer = transfers_.at(id);
  report_.writes_after_the_end += transfer.ended_there;
  const KvGeometry& kv = receiver_memory_.geometry();
  for (absl::Span<std::byte> span : memory) {
    const int64_t begin =
        (span.data() - kv.memory.data()) % kv.layer_stride_bytes;
    const int64_t end = begin + static_cast<int64_t>(span.size());
    for (int64_t at = begin; at < end; at += kv.page_bytes) {
      const auto block = static_cast<BlockId>(at / kv.page_bytes);
      if (owners_[block] == id) continue;
      Violate(absl::StrCat(
          "a write of transfer ", static_cast<uint64_t>(id), " into block ",
          block, ", which belongs to ",
          owners_[block].has_value()
              ? absl::StrCat("transfer ",
                             static_cast<uint64_t>(*owners_[block]))
              : "nobody"));
    }
  }
}

void LateWrites::Begin() {
  const int32_t n = 1 + Below(6);
  auto source = source_pool_.Allocate(n);
  auto target = target_pool_.Allocate(n);
  if (!source.has_value() || !target.has_value()) return;
  const TransferId id{next_id_++};
  Transfer& transfer = transfers_[id];
  transfer.source = *std::move(source);
  transfer.target = *std::move(target);
  for (BlockId block : transfer.target.ids()) owners_[block] = id;
  for (int32_t layer = 0; layer < kLayers; ++layer) {
    for (int32_t i = 0; i < n; ++i) {
      sender_memory_.Write(static_cast<uint64_t>(id), layer, i,
                           transfer.source.ids()[i]);
    }
  }
  const absl::Span<const BlockId> ids = transfer.target.ids();
  auto open = OpenOf({ids.begin(), ids.end()});
  open.transfer = id;
  open.deadline = In(absl::Milliseconds(50 + Below(3000)));
  const absl::Status opened = receiver_->Open(open);
  CHECK(opened.ok()) << opened;
  auto grant = GrantOf(0, n);
  grant.transfer = id;
  const absl::Status started = sender_->Start(
      grant, transfer.source.ids(), In(absl::Milliseconds(50 + Below(3000))));
  if (started.ok()) return;
  transfer.over_here = true;
  transfer.source.Release();
}

void LateWrites::Act(TransferId id, Transfer& transfer) {
  if (Chance(1)) sender_->Abort(id);
  if (Chance(2) && !transfer.ended_there) {
    receiver_->Abort(id);
    transfer.ended_there = true;
    ++report_.aborted;
  }
  if (transfer.committed || transfer.over_here) return;
  const int32_t n = transfer.source.size();
  const int32_t layer = Below(kLayers);
  transfer.ready[layer] = std::min(n, transfer.ready[layer] + Below(n + 1));
  sender_->SendLayer(id, layer, transfer.ready[layer]);
  if (std::all_of(transfer.ready.begin(), transfer.ready.end(),
                  [&](int32_t ready) { return ready == n; })) {
    sender_->Commit(id, {.first_token = 42});
    transfer.committed = true;
  }
}

void LateWrites::Disturb() {
  lease_until_ = absl::InfiniteFuture();
  if (Chance(30)) {
    clock_.Advance(absl::Milliseconds(Chance(5) ? 400 : Below(40)));
    if (Chance(1)) lease_until_ = clock_.Now();
    network_.Tick();
  }
  if (Below(300) == 0) network_.BreakConnection();
}

void LateWrites::CollectThere() {
  for (const auto& event : PollReceiver()) {
    if (const auto* landed = std::get_if<Receiver::Landed>(&event)) {
      Transfer& transfer = transfers_.at(landed->transfer);
      if (std::exchange(transfer.over_there, true)) Violate("ended twice");
      transfer.ended_there = transfer.landed = true;
      transfer.rounds_left = Below(30);
      ++report_.landed;
    } else if (const auto* failed = std::get_if<Receiver::Failed>(&event)) {
      transfers_.at(failed->transfer).ended_there = true;
      ++report_.failed;
    } else if (const auto* quiet = std::get_if<Receiver::Quiesced>(&event)) {
      Transfer& transfer = transfers_.at(quiet->transfer);
      if (std::exchange(transfer.over_there, true)) Violate("ended twice");
      Free(quiet->transfer, transfer);
    }
  }
}

void LateWrites::Collect() {
  CollectThere();
  for (const auto& event : PollSender()) {
    if (const auto* quiet = std::get_if<Sender::Quiesced>(&event)) {
      Transfer& transfer = transfers_.at(quiet->transfer);
      if (std::exchange(transfer.over_here, true)) Violate("ended twice");
      transfer.source.Release();
    } else if (std::holds_alternative<PeerLost>(event) ||
               std::holds_alternative<PeerRefused>(event)) {
      paired_ = false;
    }
  }
  if (paired_) return;
  CHECK(sender_->Pair(receiver_transport_->properties().address).ok());
  paired_ = true;
}

// Sequences that landed are decoded for a while: their KV stays what it was.
void LateWrites::Decode() {
  for (auto& [id, transfer] : transfers_) {
    if (!transfer.landed || transfer.target.size() == 0) continue;
    const absl::Span<const BlockId> ids = transfer.target.ids();
    if (transfer.rounds_left % 5 == 0 &&
        !receiver_memory_.HoldsAll(static_cast<uint64_t>(id), 0,
                                   {ids.begin(), ids.end()})) {
      Violate(absl::StrCat("the KV of transfer ", static_cast<uint64_t>(id),
                           " is not what was sent"));
    }
    if (transfer.rounds_left-- == 0) Free(id, transfer);
  }
}

void LateWrites::Free(TransferId id, Transfer& transfer) {
  for (BlockId block : transfer.target.ids()) owners_[block] = std::nullopt;
  transfer.target.Release();
}

void LateWrites::BeQuiet() {
  lease_until_ = absl::InfiniteFuture();
  for (int i = 0; i < 60 && !report_.violation.has_value(); ++i) {
    clock_.Advance(absl::Milliseconds(200));
    network_.Tick();
    for (int step = 0; step < 500 && network_.Step(); ++step) {
    }
    Collect();
    Decode();
  }
  for (const auto& [id, transfer] : transfers_) {
    if (!transfer.over_there || !transfer.over_here) {
      Violate(
          absl::StrCat("transfer ", static_cast<uint64_t>(id), " never ended"));
    }
  }
  if (target_pool_.num_in_use() > 0 || source_pool_.num_in_use() > 0) {
    Violate("blocks are still in use");
  }
  if (late_->num_open() > 0) Violate("a payload was never written");
}

Report LateWrites::Run() {
  for (int round = 0; round < kRounds && !report_.violation; ++round) {
    int open = 0;
    for (const auto& [id, transfer] : transfers_) open += !transfer.over_there;
    if (open < kMaxOpen && Chance(40)) Begin();
    for (auto& [id, transfer] : transfers_) {
      if (!transfer.over_there && Chance(40)) Act(id, transfer);
    }
    for (int i = Below(16); i > 0; --i) network_.Step();
    Disturb();
    Collect();
    Decode();
  }
  BeQuiet();
  report_.writes_after_peer_down = late_->stats().written_after_peer_down;
  return report_;
}

Report RunSeed(uint64_t seed, Fence removed) {
  LateWrites run(seed, removed);
  run.SetUp();
  return run.Run();
}

std::string Replay(uint64_t seed) {
  return absl::StrCat("replay: BATON_LATE_WRITE_SEED=", seed,
                      " kv_transfer_late_write_test");
}

class LateWriteTest : public ::testing::Test {
 protected:
  static constexpr uint64_t kSeeds = 300;
  // Failed transfers are what all of this is about.
  void SetUp() override { FLAGS_minloglevel = google::GLOG_FATAL; }
  void TearDown() override { FLAGS_minloglevel = google::GLOG_INFO; }
};

TEST_F(LateWriteTest, NeverLandsInBlocksOfALaterTransfer) {
  uint64_t first = 1, last = kSeeds;
  if (const char* only = std::getenv("BATON_LATE_WRITE_SEED")) {
    CHECK(absl::SimpleAtoi(only, &first)) << only;
    last = first;
  }
  Report total;
  for (uint64_t seed = first; seed <= last; ++seed) {
    const Report report = RunSeed(seed, Fence::kNone);
    ASSERT_FALSE(report.violation.has_value()) << *report.violation << "\n"
                                               << Replay(seed);
    total.landed += report.landed;
    total.failed += report.failed;
    total.aborted += report.aborted;
    total.writes_after_the_end += report.writes_after_the_end;
    total.writes_after_peer_down += report.writes_after_peer_down;
  }
  if (first == last) return;
  // All of it must have happened often, or nothing was tested.
  EXPECT_GT(total.landed, 2000);
  EXPECT_GT(total.failed, 2000);
  EXPECT_GT(total.aborted, 1000);
  EXPECT_GT(total.writes_after_the_end, 1000);
  EXPECT_GT(total.writes_after_peer_down, 500u);
  std::cout << total.landed << " landed, " << total.failed << " failed, "
            << total.aborted << " were aborted; " << total.writes_after_the_end
            << " writes came after the end of their transfer, "
            << total.writes_after_peer_down << " after that of the peer\n";
}

TEST_F(LateWriteTest, IsSeenWithoutTheQuarantine) {
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    const Report report = RunSeed(seed, Fence::kQuarantine);
    if (!absl::StrContains(report.violation.value_or(""),
                           "which belongs to transfer")) {
      continue;
    }
    // With it, the same seed does no harm.
    EXPECT_FALSE(RunSeed(seed, Fence::kNone).violation.has_value());
    RecordProperty("seed", std::to_string(seed));
    return;
  }
  FAIL() << "no foreign write in " << kSeeds << " seeds";
}

}  // namespace
}  // namespace baton::kv_transfer
