// How the KV pages of two workers correspond, when their blocks hold different
// numbers of tokens or they hold different heads of the model (tensor
// parallelism). Both sides make the same map from the two hellos, so that what
// goes over the wire has one form:
//
//   A wire page holds `wire_block_size` tokens (the smaller block size) of the
//   heads that both sides have. Where the block sizes are equal it is one run
//   of bytes in a page on either side, often the whole page. Where they differ
//   it holds a single head, because the runs are short then, and many.
//
// The wire pages of a transfer are counted from its first token on: page p is
// slice p % slices() of wire block p / slices().
//
// Immutable; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "baton/v1/peer.pb.h"
#include "common/ids.h"
#include "kv_transfer/handoff.h"
#include "kv_transfer/transport.h"

namespace baton::kv_transfer {

// What a worker's pages hold, of all that the model has.
struct PageShape {
  int32_t block_size = 0;  // tokens
  int32_t first_head = 0;  // of the model's KV heads
  int32_t num_heads = 0;
};

PageShape ShapeOf(const v1::PeerHello& hello);

// A run of wire pages of one layer.
struct PageRun {
  uint32_t layer = 0;
  uint32_t first_page = 0;
  uint32_t num_pages = 0;
};

class PageMap final {
 public:
  // `ours` describes the pages of `kv`. InvalidArgument names the field of the
  // hello that does not fit, with both values.
  static absl::StatusOr<PageMap> Create(const KvGeometry& kv,
                                        const PageShape& ours,
                                        const PageShape& theirs);

  int32_t wire_block_size() const { return wire_block_size_; }
  // The heads that go over, of the model's.
  int32_t first_head() const { return first_head_; }
  int32_t num_heads() const { return num_heads_; }
  // Wire pages of one wire block and layer.
  int32_t slices() const { return slices_; }
  int64_t page_bytes() const { return page_bytes_; }
  // Bytes of the parts of a wire page, in order; each lies in one section of
  // one head.
  const std::vector<int64_t>& parts() const { return parts_; }

  // Extents of one wire page, on the side that has more of them.
  uint32_t max_extents() const { return max_extents_; }

  // Wire pages of `num_tokens` tokens of one layer.
  uint32_t PagesFor(int32_t num_tokens) const;
  // Those of them that are whole when `tokens_ready` tokens are.
  uint32_t PagesReady(int32_t tokens_ready, int32_t num_tokens) const;

  // Where the pages of `run` lie on this side, in wire order; runs of bytes
  // that lie next to each other share an extent. `blocks`: the sequence's here;
  // wire page 0 begins at token `first_token` of them.
  // REQUIRES: a multiple of wire_block_size(); layer and blocks in range.
  std::vector<Extent> Extents(const KvGeometry& kv, RegionId region,
                              const PageRun& run, int32_t first_token,
                              absl::Span<const BlockId> blocks) const;

  // Most wire pages in one message, so that it fits `properties` on either side
  // and is about as large as such transports like it; at least 1. A message
  // that the receiver would have to cut into more extents is refused by it.
  // REQUIRES: Fits(properties).
  uint32_t MaxPagesPerMessage(const TransportProperties& properties) const;
  // Whether a single page can be sent at all.
  bool Fits(const TransportProperties& properties) const;

 private:
  // Some bytes of a page that stay together: of one section and head.
  struct Piece {
    // Within a page of ours, for the first tokens of a block.
    int64_t offset = 0;
    int64_t bytes = 0;
    // How much further it is for every 16 tokens.
    int64_t unit_bytes = 0;
  };

  PageMap() = default;
  void AddPieces(const std::vector<PageSection>& sections, int64_t head_bytes,
                 int32_t first_head_of_ours);

  int32_t block_size_ = 0;  // ours
  int32_t wire_block_size_ = 0;
  int32_t first_head_ = 0;
  int32_t num_heads_ = 0;
  int32_t slices_ = 1;
  int64_t page_bytes_ = 0;
  std::vector<int64_t> parts_;
  std::vector<Piece> pieces_;  // of slice 0
  int64_t slice_stride_bytes_ = 0;
  uint32_t max_extents_ = 1;
};

}  // namespace baton::kv_transfer
