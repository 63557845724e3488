#include "decode_worker/swap_store.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/manual_clock.h"

namespace baton::decode_worker {
namespace {

engine::KvLayout SmallLayout(engine::KvDtype dtype = engine::KvDtype::kBf16) {
  engine::KvLayout layout;
  layout.num_layers = 3;
  layout.num_blocks = 8;
  layout.num_kv_heads = 2;
  layout.head_dim = 24;
  layout.dtype = dtype;
  return layout;
}

// An arena of random bytes.
std::vector<std::byte> RandomArena(const engine::KvLayout& layout) {
  std::vector<std::byte> arena(static_cast<size_t>(layout.total_bytes()));
  std::mt19937 random(7);
  for (std::byte& b : arena) b = static_cast<std::byte>(random());
  return arena;
}

// What the blocks hold, page by page.
std::vector<std::byte> ContentOf(const engine::KvLayout& layout,
                                 const std::vector<std::byte>& arena,
                                 const std::vector<BlockId>& blocks) {
  std::vector<std::byte> content;
  for (int32_t layer = 0; layer < layout.num_layers; ++layer) {
    for (BlockId block : blocks) {
      const auto page = arena.begin() + layout.PageOffset(layer, block);
      content.insert(content.end(), page, page + layout.page_bytes());
    }
  }
  return content;
}

TEST(HostKvCopyTest, BlocksComeBackBitForBitAndNothingElseChanges) {
  for (const auto dtype : {engine::KvDtype::kBf16, engine::KvDtype::kInt8}) {
    const engine::KvLayout layout = SmallLayout(dtype);
    std::vector<std::byte> arena = RandomArena(layout);
    const std::vector<std::byte> before = arena;
    engine::HostKvCopy copy(layout, absl::MakeSpan(arena));
    const std::vector<BlockId> from = {6, 0, 3};
    std::vector<std::byte> host(static_cast<size_t>(3 * layout.block_bytes()));
    copy.ToHost(from, absl::MakeSpan(host));
    EXPECT_EQ(arena, before);
    const std::vector<BlockId> to = {1, 7, 6};
    copy.FromHost(host, to);
    EXPECT_EQ(ContentOf(layout, arena, to), ContentOf(layout, before, from));
    const std::vector<BlockId> others = {0, 2, 3, 4, 5};
    EXPECT_EQ(ContentOf(layout, arena, others),
              ContentOf(layout, before, others));
  }
}

TEST(HostKvCopyDeathTest, SizesAndBlocksMustFit) {
  const engine::KvLayout layout = SmallLayout();
  std::vector<std::byte> arena = RandomArena(layout);
  engine::HostKvCopy copy(layout, absl::MakeSpan(arena));
  std::vector<std::byte> host(static_cast<size_t>(layout.block_bytes()));
  EXPECT_DEATH(copy.ToHost({{1, 2}}, absl::MakeSpan(host)), "Check failed");
  EXPECT_DEATH(copy.FromHost(host, {{8}}), "Check failed");
}

// A copy that takes a millisecond for each KiB.
class SlowCopy final : public engine::KvCopy {
 public:
  explicit SlowCopy(test::ManualClock* clock) : clock_(clock) {}
  void ToHost(absl::Span<const BlockId> blocks,
              absl::Span<std::byte> host) override {
    Take(host.size());
    std::fill(host.begin(), host.end(), static_cast<std::byte>(blocks[0]));
  }
  void FromHost(absl::Span<const std::byte> host,
                absl::Span<const BlockId> blocks) override {
    Take(host.size());
    restored = static_cast<int>(host[0]);
  }

  int restored = -1;

 private:
  void Take(size_t bytes) {
    clock_->Advance(absl::Milliseconds(1) * static_cast<double>(bytes) / 1024);
  }
  test::ManualClock* const clock_;
};

TEST(SwapStoreTest, IsBoundedAndGivesItsBytesBack) {
  const engine::KvLayout layout = SmallLayout();
  test::ManualClock clock;
  SlowCopy copy(&clock);
  SwapStore store(5 * layout.block_bytes(), layout, &copy, &clock);
  EXPECT_EQ(store.bytes_per_second(), 0);
  std::optional<SwappedKv> two(store.Save({{4, 5}}));
  {
    const SwappedKv three = store.Save({{1, 2, 3}});
    EXPECT_EQ(store.room(), 0);
    EXPECT_EQ(store.num_sequences(), 2);
    store.Restore(three, {{5, 6, 7}});
    EXPECT_EQ(copy.restored, 1);
  }
  EXPECT_EQ(store.room(), 3 * layout.block_bytes());
  SwappedKv moved = *std::move(two);
  two.reset();
  EXPECT_EQ(store.num_sequences(), 1);
  EXPECT_EQ(moved.num_blocks(), 2);
  store.Restore(moved, {{0, 1}});
  EXPECT_EQ(copy.restored, 4);
  EXPECT_EQ(store.bytes(), 2 * layout.block_bytes());
}

TEST(SwapStoreTest, MeasuresItsCopies) {
  const engine::KvLayout layout = SmallLayout();
  test::ManualClock clock;
  SlowCopy copy(&clock);
  SwapStore store(5 * layout.block_bytes(), layout, &copy, &clock);
  const SwappedKv kv = store.Save({{4, 5}});
  EXPECT_NEAR(store.bytes_per_second(), 1024e3, 1);
  EXPECT_NEAR(store.last_seconds(),
              2 * static_cast<double>(layout.block_bytes()) / 1024e3, 1e-9);
}

TEST(SwapStoreDeathTest, MoreThanItTakesIsABug) {
  const engine::KvLayout layout = SmallLayout();
  test::ManualClock clock;
  SlowCopy copy(&clock);
  SwapStore store(layout.block_bytes(), layout, &copy, &clock);
  EXPECT_DEATH(store.Save({{4, 5}}), "Check failed");
}

}  // namespace
}  // namespace baton::decode_worker
