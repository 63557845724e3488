#include "tests/integration/packet_line.h"

#include <string>

#include <gtest/gtest.h>

namespace baton::test {
namespace {

constexpr absl::Time kStart = absl::UnixEpoch();

absl::Time At(int milliseconds) {
  return kStart + absl::Milliseconds(milliseconds);
}

// A byte takes a millisecond, and then ten to travel.
constexpr LineOptions kSlow{.bytes_per_second = 1000,
                            .delay = absl::Milliseconds(10),
                            .queue_bytes = 100};

TEST(PacketLineTest, APacketTakesItsBytesAndTheDelay) {
  PacketLine line(kSlow);
  EXPECT_EQ(line.NextArrival(), absl::InfiniteFuture());
  ASSERT_TRUE(line.Push(std::string(30, 'a'), kStart));
  EXPECT_EQ(line.NextArrival(), At(40));
  EXPECT_FALSE(line.Pop(At(39)).has_value());
  EXPECT_EQ(line.Pop(At(40)), std::string(30, 'a'));
  EXPECT_FALSE(line.Pop(At(1000)).has_value());
}

TEST(PacketLineTest, PacketsWaitForEachOtherAndKeepTheirOrder) {
  PacketLine line(kSlow);
  ASSERT_TRUE(line.Push(std::string(50, 'a'), kStart));
  ASSERT_TRUE(line.Push(std::string(20, 'b'), At(1)));
  EXPECT_EQ(line.Pop(At(100))->front(), 'a');
  EXPECT_EQ(line.NextArrival(), At(80));
  EXPECT_EQ(line.Pop(At(80))->front(), 'b');
  // An idle line does not save up.
  ASSERT_TRUE(line.Push("c", At(500)));
  EXPECT_EQ(line.NextArrival(), At(511));
}

TEST(PacketLineTest, WhatDoesNotFitTheQueueIsDropped) {
  PacketLine line(kSlow);
  ASSERT_TRUE(line.Push(std::string(60, 'a'), kStart));
  EXPECT_FALSE(line.Push(std::string(41, 'b'), kStart));
  EXPECT_TRUE(line.Push(std::string(40, 'c'), kStart));
  EXPECT_FALSE(line.Push("d", kStart));
  // Half of it has left by then.
  EXPECT_TRUE(line.Push(std::string(50, 'e'), At(50)));
  EXPECT_EQ(line.Pop(At(1000))->front(), 'a');
  EXPECT_EQ(line.Pop(At(1000))->front(), 'c');
  EXPECT_EQ(line.Pop(At(1000))->front(), 'e');
}

TEST(PacketLineTest, ClearLosesEverything) {
  PacketLine line(kSlow);
  ASSERT_TRUE(line.Push(std::string(100, 'a'), kStart));
  line.Clear(At(10));
  EXPECT_EQ(line.NextArrival(), absl::InfiniteFuture());
  ASSERT_TRUE(line.Push(std::string(100, 'b'), At(10)));
  EXPECT_EQ(line.NextArrival(), At(120));
}

}  // namespace
}  // namespace baton::test
