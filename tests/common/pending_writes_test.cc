#include "common/rpc/pending_writes.h"

#include <string>

#include "gtest/gtest.h"

namespace baton::rpc {
namespace {

using Writes = PendingWrites<std::string>;

TEST(PendingWritesTest, OneWriteIsUnderWayAtATime) {
  Writes writes(4);
  EXPECT_EQ(writes.Push("a"), Writes::PushResult::kStart);
  EXPECT_EQ(writes.Push("b"), Writes::PushResult::kQueued);
  EXPECT_EQ(*writes.InFlight(), "a");
  const std::string* next = writes.Done();
  ASSERT_NE(next, nullptr);
  EXPECT_EQ(*next, "b");
  EXPECT_EQ(writes.Done(), nullptr);
  EXPECT_EQ(writes.Push("c"), Writes::PushResult::kStart);
}

TEST(PendingWritesTest, RefusesBeyondTheBoundAndAfterClose) {
  Writes writes(2);
  EXPECT_EQ(writes.Push("a"), Writes::PushResult::kStart);
  EXPECT_EQ(writes.Push("b"), Writes::PushResult::kQueued);
  EXPECT_EQ(writes.Push("c"), Writes::PushResult::kFull);
  EXPECT_FALSE(writes.Close());  // a write is under way
  EXPECT_EQ(writes.Push("d"), Writes::PushResult::kClosed);
  EXPECT_EQ(*writes.Done(), "b");
  EXPECT_EQ(writes.Done(), nullptr);
  EXPECT_TRUE(writes.Close());
}

TEST(PendingWritesTest, TheMessageInFlightStaysWhereItIs) {
  Writes writes(1000);
  ASSERT_EQ(writes.Push("first"), Writes::PushResult::kStart);
  const std::string* address = writes.InFlight();
  for (int i = 0; i < 900; ++i) writes.Push("more");
  EXPECT_EQ(writes.InFlight(), address);
  EXPECT_EQ(*address, "first");
}

}  // namespace
}  // namespace baton::rpc
