#include "kv_transfer/page_map.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "kv_transfer/page_hasher.h"

namespace baton::kv_transfer {
namespace {

// Sections are described for this many tokens.
constexpr int32_t kUnitTokens = 16;

int64_t HeadBytes(const std::vector<PageSection>& sections,
                  int32_t block_size) {
  int64_t bytes = 0;
  for (const PageSection& section : sections) {
    bytes += section.rows * section.unit_bytes * (block_size / kUnitTokens);
  }
  return bytes;
}

absl::Status Differ(absl::string_view field, int32_t ours, int32_t theirs,
                    absl::string_view why) {
  return absl::InvalidArgumentError(
      absl::StrCat(field, " (", ours, " here, ", theirs, " there; ", why, ")"));
}

// A device hashes what is cut in stripes.
absl::Status CheckHashed(const KvGeometry& kv, int64_t page_bytes,
                         const std::vector<int64_t>& runs) {
  if (kv.hasher == nullptr) return absl::OkStatus();
  bool whole = page_bytes >= PageHasher::kShortestPage &&
               page_bytes % PageHasher::kStripeBytes == 0;
  for (const int64_t bytes : runs) {
    whole = whole && bytes % PageHasher::kStripeBytes == 0;
  }
  if (whole) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "page_bytes (", page_bytes, " go over together, in the memory of a ",
      "device; at least ", PageHasher::kShortestPage, " and multiples of ",
      PageHasher::kStripeBytes, " can be checked there)"));
}

}  // namespace

PageShape ShapeOf(const v1::PeerHello& hello) {
  const v1::ModelFingerprint& model = hello.fingerprint();
  const uint32_t heads =
      hello.kv_heads() == 0 ? model.num_kv_heads() : hello.kv_heads();
  return {.block_size = static_cast<int32_t>(model.block_size()),
          .first_head = static_cast<int32_t>(hello.first_kv_head()),
          .num_heads = static_cast<int32_t>(heads)};
}

absl::StatusOr<PageMap> PageMap::Create(const KvGeometry& kv,
                                        const PageShape& ours,
                                        const PageShape& theirs) {
  // Far more than any model has; keeps the sums below from overflowing.
  constexpr int32_t kMax = 1 << 20;
  for (const PageShape& shape : {ours, theirs}) {
    if (shape.block_size < 1 || shape.block_size > kMax) {
      return Differ("block_size", ours.block_size, theirs.block_size,
                    "out of range");
    }
    if (shape.num_heads < 1 || shape.num_heads > kMax || shape.first_head < 0 ||
        shape.first_head > kMax) {
      return Differ("kv_heads", ours.num_heads, theirs.num_heads,
                    "out of range");
    }
  }
  PageMap map;
  map.block_size_ = ours.block_size;
  map.wire_block_size_ = std::min(ours.block_size, theirs.block_size);
  const bool same_blocks = ours.block_size == theirs.block_size;
  if (!same_blocks) {
    const int32_t larger = std::max(ours.block_size, theirs.block_size);
    if (larger % map.wire_block_size_ != 0 ||
        map.wire_block_size_ % kUnitTokens != 0) {
      return Differ("block_size", ours.block_size, theirs.block_size,
                    "one must be a multiple of the other");
    }
    if (kv.sections.empty()) {
      return Differ("block_size", ours.block_size, theirs.block_size,
                    "what a page holds is not known");
    }
  }
  map.first_head_ = std::max(ours.first_head, theirs.first_head);
  map.num_heads_ = std::min(ours.first_head + ours.num_heads,
                            theirs.first_head + theirs.num_heads) -
                   map.first_head_;
  if (map.num_heads_ < 1) {
    return Differ("first_kv_head", ours.first_head, theirs.first_head,
                  "no head is on both sides");
  }
  const int64_t head_bytes = kv.page_bytes / ours.num_heads;
  const int32_t skipped = map.first_head_ - ours.first_head;
  if (same_blocks) {
    map.page_bytes_ = map.num_heads_ * head_bytes;
    map.pieces_ = {{.offset = skipped * head_bytes, .bytes = map.page_bytes_}};
    for (int32_t head = 0; head < map.num_heads_; ++head) {
      for (const PageSection& section : kv.sections) {
        map.parts_.push_back(section.rows * section.unit_bytes *
                             (map.block_size_ / kUnitTokens));
      }
    }
    BATON_RETURN_IF_ERROR(
        CheckHashed(kv, map.page_bytes_, {skipped * head_bytes}));
    return map;
  }
  map.slices_ = map.num_heads_;
  map.slice_stride_bytes_ = head_bytes;
  map.page_bytes_ = HeadBytes(kv.sections, map.wire_block_size_);
  map.AddPieces(kv.sections, head_bytes, skipped);
  std::vector<int64_t> runs = {skipped * head_bytes};
  for (const Piece& piece : map.pieces_) runs.push_back(piece.unit_bytes);
  BATON_RETURN_IF_ERROR(CheckHashed(kv, map.page_bytes_, runs));
  return map;
}

void PageMap::AddPieces(const std::vector<PageSection>& sections,
                        int64_t head_bytes, int32_t first_head_of_ours) {
  const int64_t units = wire_block_size_ / kUnitTokens;
  const int64_t own_units = block_size_ / kUnitTokens;
  int64_t offset = first_head_of_ours * head_bytes;
  for (const PageSection& section : sections) {
    parts_.push_back(section.rows * units * section.unit_bytes);
    for (int32_t row = 0; row < section.rows; ++row) {
      pieces_.push_back({.offset = offset,
                         .bytes = units * section.unit_bytes,
                         .unit_bytes = section.unit_bytes});
      offset += own_units * section.unit_bytes;
    }
  }
  max_extents_ = static_cast<uint32_t>(pieces_.size());
}

uint32_t PageMap::PagesFor(int32_t num_tokens) const {
  CHECK_GE(num_tokens, 0);
  const int32_t blocks = num_tokens / wire_block_size_ +
                         (num_tokens % wire_block_size_ != 0 ? 1 : 0);
  return static_cast<uint32_t>(blocks) * static_cast<uint32_t>(slices_);
}

uint32_t PageMap::PagesReady(int32_t tokens_ready, int32_t num_tokens) const {
  if (tokens_ready >= num_tokens) return PagesFor(num_tokens);
  if (tokens_ready <= 0) return 0;
  return static_cast<uint32_t>(tokens_ready / wire_block_size_) *
         static_cast<uint32_t>(slices_);
}

std::vector<Extent> PageMap::Extents(const KvGeometry& kv, RegionId region,
                                     const PageRun& run, int32_t first_token,
                                     absl::Span<const BlockId> blocks) const {
  std::vector<Extent> extents;
  extents.reserve(run.num_pages * pieces_.size());
  for (uint32_t page = run.first_page; page < run.first_page + run.num_pages;
       ++page) {
    const int64_t token =
        first_token +
        int64_t{page / static_cast<uint32_t>(slices_)} * wire_block_size_;
    const int64_t slice = page % static_cast<uint32_t>(slices_);
    const uint64_t base = kv.PageOffset(static_cast<int32_t>(run.layer),
                                        blocks[token / block_size_]) +
                          static_cast<uint64_t>(slice * slice_stride_bytes_);
    const int64_t units = token % block_size_ / kUnitTokens;
    for (const Piece& piece : pieces_) {
      const uint64_t offset =
          base + static_cast<uint64_t>(piece.offset + units * piece.unit_bytes);
      const auto bytes = static_cast<uint64_t>(piece.bytes);
      if (!extents.empty() &&
          extents.back().offset + extents.back().length == offset) {
        extents.back().length += bytes;
      } else {
        extents.push_back({region, offset, bytes});
      }
    }
  }
  return extents;
}

bool PageMap::Fits(const TransportProperties& properties) const {
  return static_cast<uint64_t>(page_bytes_) <= properties.max_payload_bytes &&
         max_extents_ <= properties.max_payload_extents;
}

uint32_t PageMap::MaxPagesPerMessage(
    const TransportProperties& properties) const {
  CHECK(Fits(properties));
  const uint64_t budget =
      std::min(properties.good_payload_bytes, properties.max_payload_bytes);
  const uint64_t pages =
      std::max<uint64_t>(1, budget / static_cast<uint64_t>(page_bytes_));
  return static_cast<uint32_t>(
      std::min<uint64_t>(pages, properties.max_payload_extents / max_extents_));
}

}  // namespace baton::kv_transfer
