#include "kv_transfer/page_map.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kv_transfer/extent_bytes.h"
#include "tests/kv_transfer/device_memory.h"
#include "tests/kv_transfer/shaped_cache.h"

namespace baton::kv_transfer {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Keys, their scales, values of 32 elements a head, their scales.
const std::vector<PageSection> kSections = {
    {1, 512}, {1, 64}, {2, 256}, {1, 64}};
constexpr int64_t kUnitBytes = 512 + 64 + 2 * 256 + 64;  // of one head

std::string Why(const KvGeometry& kv, PageShape ours, PageShape theirs) {
  return std::string(PageMap::Create(kv, ours, theirs).status().message());
}

TEST(PageMapTest, EqualShapesGoOverAsTheyAre) {
  const PageShape shape{.block_size = 32, .num_heads = 4};
  ShapedCache cache(2, 8, shape, kSections);
  const auto map = PageMap::Create(cache.geometry(), shape, shape);
  ASSERT_TRUE(map.ok()) << map.status();
  EXPECT_EQ(map->page_bytes(), cache.geometry().page_bytes);
  EXPECT_EQ(map->slices(), 1);
  EXPECT_EQ(map->PagesFor(0), 0u);
  EXPECT_EQ(map->PagesFor(1), 1u);
  EXPECT_EQ(map->PagesFor(64), 2u);
  EXPECT_EQ(map->PagesReady(63, 65), 1u);
  EXPECT_EQ(map->PagesReady(65, 65), 3u);
  EXPECT_EQ(map->PagesReady(-5, 65), 0u);
  const auto extents = map->Extents(cache.geometry(), RegionId{3}, {1, 0, 3},
                                    /*first_token=*/32, {0, 4, 5, 2});
  ASSERT_EQ(extents.size(), 2u);
  EXPECT_EQ(extents[0].offset, cache.geometry().PageOffset(1, 4));
  EXPECT_EQ(extents[0].length, 2u * map->page_bytes());
  EXPECT_EQ(extents[1].offset, cache.geometry().PageOffset(1, 2));
  // One part for each section of each head.
  EXPECT_EQ(map->parts().size(), 16u);
}

TEST(PageMapTest, HeadsThatBothHaveAreOneRun) {
  const PageShape all{.block_size = 16, .num_heads = 4};
  const PageShape some{.block_size = 16, .first_head = 2, .num_heads = 2};
  ShapedCache here(1, 4, all, kSections);
  const auto map = PageMap::Create(here.geometry(), all, some);
  ASSERT_TRUE(map.ok()) << map.status();
  EXPECT_EQ(map->first_head(), 2);
  EXPECT_EQ(map->num_heads(), 2);
  EXPECT_EQ(map->page_bytes(), 2 * kUnitBytes);
  EXPECT_EQ(map->max_extents(), 1u);
  const auto extents =
      map->Extents(here.geometry(), RegionId{}, {0, 0, 1}, 0, {3});
  ASSERT_EQ(extents.size(), 1u);
  EXPECT_EQ(extents[0].offset,
            here.geometry().PageOffset(0, 3) + 2 * kUnitBytes);
}

// What one side gathers is what the other scatters, for every pair of shapes.
TEST(PageMapTest, BothSidesMeanTheSameBytes) {
  const std::vector<PageShape> shapes = {
      {.block_size = 16, .num_heads = 4},
      {.block_size = 32, .num_heads = 4},
      {.block_size = 128, .first_head = 1, .num_heads = 2},
      {.block_size = 64, .first_head = 2, .num_heads = 2}};
  constexpr int32_t kUnits = 11;
  for (const PageShape& from : shapes) {
    for (const PageShape& to : shapes) {
      ShapedCache source(2, 12, from, kSections);
      ShapedCache target(2, 12, to, kSections);
      const std::vector<BlockId> blocks = {7, 3, 9, 0, 1, 2, 11, 10, 4, 8, 5};
      source.Fill(blocks, kUnits);
      const auto here = PageMap::Create(source.geometry(), from, to);
      const auto there = PageMap::Create(target.geometry(), to, from);
      ASSERT_TRUE(here.ok() && there.ok()) << here.status() << there.status();
      const uint32_t pages = here->PagesFor(kUnits * 16);
      ASSERT_EQ(pages, there->PagesFor(kUnits * 16));
      ASSERT_EQ(here->page_bytes(), there->page_bytes());
      for (uint32_t layer = 0; layer < 2; ++layer) {
        for (uint32_t page = 0; page < pages; page += 2) {
          const PageRun run{layer, page, std::min(2u, pages - page)};
          std::vector<std::byte> bytes(run.num_pages * here->page_bytes());
          ReadExtents(
              source.geometry().memory,
              here->Extents(source.geometry(), RegionId{}, run, 0, blocks), 0,
              absl::MakeSpan(bytes));
          WriteExtents(
              target.geometry().memory,
              there->Extents(target.geometry(), RegionId{}, run, 0, blocks), 0,
              bytes);
        }
      }
      EXPECT_EQ(target.Wrong(blocks, 0, kUnits, here->first_head(),
                             here->first_head() + here->num_heads()),
                0)
          << from.block_size << " to " << to.block_size;
    }
  }
}

// A device hashes whole stripes: with every pair of shapes there are.
TEST(PageMapTest, PagesOfADeviceAreStripes) {
  const PageShape small{.block_size = 16, .num_heads = 4};
  const PageShape large{.block_size = 64, .first_head = 1, .num_heads = 2};
  ShapedCache cache(1, 4, small, kSections);
  DeviceMemory device(cache.geometry().memory);
  const KvGeometry kv = device.Place(cache.geometry());
  EXPECT_TRUE(PageMap::Create(kv, small, small).ok());
  EXPECT_TRUE(PageMap::Create(kv, small, large).ok());

  const std::vector<PageSection> odd = {{1, 512}, {1, 32}};
  ShapedCache odd_cache(1, 4, small, odd);
  DeviceMemory odd_device(odd_cache.geometry().memory);
  const KvGeometry odd_kv = odd_device.Place(odd_cache.geometry());
  EXPECT_TRUE(PageMap::Create(odd_kv, small, small).ok());
  EXPECT_THAT(Why(odd_kv, small, large), HasSubstr("page_bytes"));
  EXPECT_TRUE(PageMap::Create(odd_cache.geometry(), small, large).ok());
}

TEST(PageMapTest, WhatDoesNotFitIsNamed) {
  const PageShape ours{.block_size = 32, .num_heads = 4};
  ShapedCache cache(1, 4, ours, kSections);
  const KvGeometry& kv = cache.geometry();
  EXPECT_THAT(
      Why(kv, ours, {.block_size = 48, .num_heads = 4}),
      AllOf(HasSubstr("block_size (32 here, 48 there"), HasSubstr("multiple")));
  EXPECT_THAT(Why(kv, ours, {.block_size = 8, .num_heads = 4}),
              HasSubstr("block_size (32 here, 8 there"));
  EXPECT_THAT(Why(kv, ours, {.block_size = -16, .num_heads = 4}),
              HasSubstr("out of range"));
  EXPECT_THAT(Why(kv, ours, {.block_size = 32, .num_heads = 0}),
              HasSubstr("kv_heads (4 here, 0 there"));
  EXPECT_THAT(
      Why(kv, ours, {.block_size = 32, .first_head = 4, .num_heads = 4}),
      HasSubstr("first_kv_head (0 here, 4 there"));
  KvGeometry opaque = kv;
  opaque.sections.clear();
  EXPECT_THAT(Why(opaque, ours, {.block_size = 16, .num_heads = 4}),
              HasSubstr("not known"));
  EXPECT_EQ(Why(opaque, ours, ours), "");
}

TEST(PageMapTest, MessagesFitBothSides) {
  TransportProperties limits;
  limits.max_payload_bytes = uint64_t{64} << 20;
  limits.max_payload_extents = 64;
  limits.good_payload_bytes = uint64_t{1} << 20;
  const PageShape ours{.block_size = 32, .num_heads = 4};
  ShapedCache cache(1, 4, ours, kSections);
  const auto map = PageMap::Create(cache.geometry(), ours,
                                   {.block_size = 16, .num_heads = 4});
  ASSERT_TRUE(map.ok());
  EXPECT_EQ(map->max_extents(), 5u);
  EXPECT_EQ(map->MaxPagesPerMessage(limits), 12u);
  limits.max_payload_extents = 4;
  EXPECT_FALSE(map->Fits(limits));
}

}  // namespace
}  // namespace baton::kv_transfer
