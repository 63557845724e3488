// The states of one transfer on each side, and how pages become extents.
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kv_transfer/checksum.h"
#include "kv_transfer/incoming_transfer.h"
#include "kv_transfer/outgoing_transfer.h"
#include "kv_transfer/page_map.h"
#include "kv_transfer/region_table.h"
#include "tests/kv_transfer/kv_fixture.h"

namespace baton::kv_transfer {
namespace {

using Claim = IncomingTransfer::Claim;

constexpr int64_t kPage = 128;

wire::Kv Pages(uint32_t layer, uint32_t first, uint32_t n) {
  return {.pages = {layer, first, n}};
}

class TransferStateTest : public ::testing::Test {
 protected:
  // `pages`: the sum over the pages.
  wire::Commit CommitOf(uint32_t blocks, uint64_t pages) {
    return {.num_layers = 2,
            .num_pages = blocks,
            .total_bytes = uint64_t{2} * blocks * kPage,
            .checksum = pages + RecordChecksum({.first_token = 5}),
            .record = {.first_token = 5}};
  }
  static std::shared_ptr<const PageMap> MapOf(const KvGeometry& kv) {
    constexpr PageShape kSame{.block_size = kBlockTokens, .num_heads = 2};
    return std::make_shared<const PageMap>(*PageMap::Create(kv, kSame, kSame));
  }
  IncomingTransfer Incoming(std::vector<BlockId> blocks) {
    const auto tokens = static_cast<int32_t>(blocks.size()) * kBlockTokens;
    IncomingTransfer transfer(kv_, kBlockTokens, 1, std::move(blocks), tokens);
    EXPECT_TRUE(transfer.Bind(map_, WireEncoding::kExact));
    return transfer;
  }
  OutgoingTransfer Outgoing(uint32_t generation, int32_t first_block,
                            int32_t num_blocks) {
    std::vector<BlockId> blocks(first_block + num_blocks);
    std::iota(blocks.begin(), blocks.end(), 0);
    return {kv_,
            map_,
            WireEncoding::kExact,
            generation,
            {.blocks = std::move(blocks),
             .first_token = first_block * kBlockTokens,
             .num_tokens = num_blocks * kBlockTokens}};
  }

  KvMemory memory_{2, 8, kPage};
  const KvGeometry kv_ = memory_.geometry();
  const std::shared_ptr<const PageMap> map_ = MapOf(kv_);
};

TEST_F(TransferStateTest, PagesAreClaimedOnce) {
  IncomingTransfer transfer = Incoming({3, 1, 5});
  EXPECT_EQ(transfer.TryClaim(Pages(0, 0, 2), 2 * kPage), Claim::kClaimed);
  EXPECT_EQ(transfer.TryClaim(Pages(0, 0, 2), 2 * kPage), Claim::kDuplicate);
  EXPECT_EQ(transfer.TryClaim(Pages(0, 1, 2), 2 * kPage), Claim::kDuplicate);
  EXPECT_EQ(transfer.TryClaim(Pages(0, 2, 1), kPage), Claim::kClaimed);
  EXPECT_EQ(transfer.TryClaim(Pages(1, 0, 3), 3 * kPage), Claim::kClaimed);
  EXPECT_EQ(transfer.num_landings(), 3);
}

TEST_F(TransferStateTest, OutOfRangeIsNotClaimed) {
  IncomingTransfer transfer = Incoming({3, 1, 5});
  const uint32_t big = ~uint32_t{0};
  EXPECT_EQ(transfer.TryClaim(Pages(2, 0, 1), kPage), Claim::kOutOfRange);
  EXPECT_EQ(transfer.TryClaim(Pages(big, 0, 1), kPage), Claim::kOutOfRange);
  EXPECT_EQ(transfer.TryClaim(Pages(0, 3, 1), kPage), Claim::kOutOfRange);
  EXPECT_EQ(transfer.TryClaim(Pages(0, big, 2), 2 * kPage), Claim::kOutOfRange);
  EXPECT_EQ(transfer.TryClaim(Pages(0, 1, big), kPage * uint64_t{big}),
            Claim::kOutOfRange);
  EXPECT_EQ(transfer.TryClaim(Pages(0, 0, 0), 0), Claim::kOutOfRange);
  EXPECT_EQ(transfer.TryClaim(Pages(0, 0, 2), kPage), Claim::kOutOfRange);
  EXPECT_EQ(transfer.num_landings(), 0);
}

TEST_F(TransferStateTest, CompleteNeedsAllPagesAndTheCommit) {
  IncomingTransfer transfer = Incoming({3, 1});
  ASSERT_EQ(transfer.TryClaim(Pages(0, 0, 2), 2 * kPage), Claim::kClaimed);
  ASSERT_EQ(transfer.TryClaim(Pages(1, 0, 2), 2 * kPage), Claim::kClaimed);
  transfer.FinishClaim(Pages(0, 0, 2), 10);
  EXPECT_EQ(transfer.TakeCommit(CommitOf(2, 15)), TransferOutcome::kOk);
  EXPECT_FALSE(transfer.Complete());
  transfer.FinishClaim(Pages(1, 0, 2), 5);
  ASSERT_TRUE(transfer.Complete());
  EXPECT_EQ(transfer.Verify(), TransferOutcome::kOk);
}

TEST_F(TransferStateTest, WrongSumIsAMismatch) {
  IncomingTransfer transfer = Incoming({});
  EXPECT_EQ(transfer.TakeCommit(CommitOf(0, 1)), TransferOutcome::kOk);
  ASSERT_TRUE(transfer.Complete());
  EXPECT_EQ(transfer.Verify(), TransferOutcome::kChecksumMismatch);
}

TEST_F(TransferStateTest, AlteredRecordIsAMismatch) {
  IncomingTransfer transfer = Incoming({});
  wire::Commit commit = CommitOf(0, 0);
  commit.record.first_token = 6;
  EXPECT_EQ(transfer.TakeCommit(commit), TransferOutcome::kOk);
  EXPECT_EQ(transfer.Verify(), TransferOutcome::kChecksumMismatch);
}

TEST_F(TransferStateTest, CommitWithOtherCountsIsRefused) {
  IncomingTransfer transfer = Incoming({3, 1});
  wire::Commit commit = CommitOf(2, 0);
  commit.num_layers = 3;
  EXPECT_EQ(transfer.TakeCommit(commit), TransferOutcome::kCountsDiffer);
  commit = CommitOf(2, 0);
  commit.total_bytes += 1;
  EXPECT_EQ(transfer.TakeCommit(commit), TransferOutcome::kCountsDiffer);
  EXPECT_EQ(transfer.TakeCommit(CommitOf(3, 0)),
            TransferOutcome::kCountsDiffer);
}

TEST_F(TransferStateTest, IsBoundOnce) {
  IncomingTransfer transfer = Incoming({3, 1});
  EXPECT_TRUE(transfer.Bind(map_, WireEncoding::kExact));
  EXPECT_FALSE(transfer.Bind(map_, WireEncoding::kInt8));
  EXPECT_FALSE(transfer.Bind(MapOf(kv_), WireEncoding::kExact));
}

TEST_F(TransferStateTest, BlocksMustBeDistinctAndInRange) {
  EXPECT_DEATH(Incoming({3, 3}), "block 3 twice");
  EXPECT_DEATH(Incoming({8}), "Check failed");
  EXPECT_DEATH(Incoming({-1}), "Check failed");
  EXPECT_DEATH(IncomingTransfer(kv_, kBlockTokens, 1, {3}, kBlockTokens + 1),
               "Check failed");
}

TEST_F(TransferStateTest, PagesPassedOnAreTakenOnceInBoundedBatches) {
  // Logical blocks 2..6 of the sequence go over.
  OutgoingTransfer transfer = Outgoing(1, /*first_block=*/2, 5);
  EXPECT_FALSE(transfer.PassOn(0, 2 * kBlockTokens));
  EXPECT_FALSE(transfer.PassOn(0, 3 * kBlockTokens - 1));
  EXPECT_TRUE(transfer.PassOn(0, 6 * kBlockTokens));
  EXPECT_FALSE(transfer.PassOn(0, 5 * kBlockTokens));
  EXPECT_TRUE(transfer.PassOn(1, 100 * kBlockTokens));
  std::vector<std::vector<uint32_t>> taken;
  while (auto batch = transfer.TakeBatch(3)) {
    taken.push_back({batch->layer, batch->first_page, batch->num_pages});
  }
  EXPECT_EQ(taken, (std::vector<std::vector<uint32_t>>{
                       {0, 0, 3}, {0, 3, 1}, {1, 0, 3}, {1, 3, 2}}));
  EXPECT_EQ(transfer.num_sends(), 4);
}

TEST_F(TransferStateTest, CommitIsDueWhenAllIsSent) {
  OutgoingTransfer transfer = Outgoing(7, 0, 2);
  transfer.PassOn(0, 2 * kBlockTokens);
  transfer.PassOn(1, 2 * kBlockTokens);
  transfer.Commit({.first_token = 5, .next_token_index = 1, .num_tokens = 30});
  EXPECT_FALSE(transfer.CommitDue());
  for (uint64_t sum : {11, 22}) {
    ASSERT_TRUE(transfer.TakeBatch(8).has_value());
    EXPECT_FALSE(transfer.CommitDue());
    transfer.AddChecksum(sum);
  }
  ASSERT_TRUE(transfer.CommitDue());
  const wire::Commit commit = transfer.TakeCommit(TransferId{3});
  EXPECT_FALSE(transfer.CommitDue());
  EXPECT_EQ(commit.generation, 7u);
  EXPECT_EQ(commit.checksum, 33u + RecordChecksum(commit.record));
  EXPECT_EQ(commit.total_bytes, 4u * kPage);
  EXPECT_EQ(commit.record.first_token, 5);
}

TEST_F(TransferStateTest, MisuseOfAnOutgoingTransferIsABug) {
  OutgoingTransfer transfer = Outgoing(1, 0, 2);
  EXPECT_DEATH(transfer.PassOn(2, 1), "Check failed");
  EXPECT_DEATH(transfer.Commit({}), "before all pages were passed on");
  transfer.PassOn(0, 2 * kBlockTokens);
  transfer.PassOn(1, 2 * kBlockTokens);
  transfer.Commit({});
  EXPECT_DEATH(transfer.Commit({}), "committed twice");
}

TEST_F(TransferStateTest, NeighbouringPagesShareAnExtent) {
  const auto extents = map_->Extents(kv_, RegionId{4}, {1, 0, 5},
                                     /*first_token=*/0, {2, 3, 4, 6, 5});
  ASSERT_EQ(extents.size(), 3u);
  EXPECT_EQ(extents[0].offset, kv_.PageOffset(1, 2));
  EXPECT_EQ(extents[0].length, 3u * kPage);
  EXPECT_EQ(extents[1].offset, kv_.PageOffset(1, 6));
  EXPECT_EQ(extents[2].offset, kv_.PageOffset(1, 5));
  EXPECT_EQ(extents[2].region, RegionId{4});
}

TEST_F(TransferStateTest, MessagesHoldAboutAMegabyte) {
  TransportProperties limits;
  limits.max_payload_bytes = uint64_t{64} << 20;
  limits.max_payload_extents = 64;
  limits.good_payload_bytes = uint64_t{1} << 20;
  KvGeometry kv = kv_;
  kv.page_bytes = 32 << 10;
  EXPECT_EQ(MapOf(kv)->MaxPagesPerMessage(limits), 32u);
  kv.page_bytes = 1 << 10;
  EXPECT_EQ(MapOf(kv)->MaxPagesPerMessage(limits), 64u);
  kv.page_bytes = 3 << 20;
  EXPECT_EQ(MapOf(kv)->MaxPagesPerMessage(limits), 1u);
  kv.page_bytes = 65 << 20;
  EXPECT_FALSE(MapOf(kv)->Fits(limits));
}

TEST_F(TransferStateTest, GeometryMustLieInItsMemory) {
  KvGeometry kv = kv_;
  kv.num_blocks = 9;
  EXPECT_DEATH(CheckGeometry(kv), "Check failed");
  kv = kv_;
  kv.memory = kv.memory.subspan(0, kv.memory.size() / 2);
  EXPECT_DEATH(CheckGeometry(kv), "Check failed");
}

TEST(RegionTableTest, RegionsAreFew) {
  std::vector<std::byte> memory(10);
  RegionTable table;
  for (size_t i = 0; i < RegionTable::kMaxRegions; ++i) {
    EXPECT_TRUE(table.Add({absl::MakeSpan(memory)}).ok());
  }
  EXPECT_EQ(table.Add({absl::MakeSpan(memory)}).status().code(),
            absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace baton::kv_transfer
