#include "decode_worker/transfer_slots.h"

#include <gtest/gtest.h>

#include <set>

namespace baton::decode_worker {
namespace {

constexpr uint64_t kIncarnation = 0x0123456789abcdef;

TEST(TransferSlotsTest, NamesDifferWhileTheyAreTaken) {
  TransferSlots slots(kIncarnation, 3);
  std::set<TransferId> ids;
  for (int i = 0; i < 3; ++i) {
    const auto name = slots.Take();
    ASSERT_TRUE(name.has_value());
    EXPECT_EQ(name->generation, 1u);
    EXPECT_EQ(static_cast<uint64_t>(name->transfer) >> 32, kIncarnation >> 32);
    ids.insert(name->transfer);
  }
  EXPECT_EQ(ids.size(), 3u);
  EXPECT_EQ(slots.num_taken(), 3u);
  EXPECT_FALSE(slots.Take().has_value());
}

TEST(TransferSlotsTest, ASlotComesBackWithAnotherGenerationLongestUnusedFirst) {
  TransferSlots slots(kIncarnation, 2);
  const auto first = slots.Take();
  const auto second = slots.Take();
  slots.Return(second->transfer);
  slots.Return(first->transfer);
  EXPECT_EQ(slots.num_taken(), 0u);
  const auto third = slots.Take();
  EXPECT_EQ(third->transfer, second->transfer);
  EXPECT_EQ(third->generation, 2u);
  EXPECT_EQ(slots.Take()->transfer, first->transfer);
}

TEST(TransferSlotsDeathTest, ASlotIsReturnedOnce) {
  TransferSlots slots(kIncarnation, 2);
  const auto name = slots.Take();
  slots.Return(name->transfer);
  EXPECT_DEATH(slots.Return(name->transfer), "is free");
  EXPECT_DEATH(slots.Return(TransferId{5}), "");
}

}  // namespace
}  // namespace baton::decode_worker
