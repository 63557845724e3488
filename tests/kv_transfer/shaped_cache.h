// KV memory whose pages have a known shape, filled so that every 16 tokens of
// every row of every head hold bytes that follow from where they belong in the
// model: a cache of another shape can tell whether they came right.
#pragma once

#include <cstring>
#include <vector>

#include "common/shared_memory.h"
#include "kv_transfer/page_map.h"
#include "tests/kv_transfer/kv_fixture.h"

namespace baton::kv_transfer {

class ShapedCache final {
 public:
  static constexpr int32_t kUnit = 16;  // tokens

  ShapedCache(int32_t num_layers, int32_t num_blocks, PageShape shape,
              std::vector<PageSection> sections)
      : shape_(shape),
        memory_(num_layers, num_blocks, PageBytes(shape, sections)),
        kv_(memory_.geometry()) {
    kv_.sections = std::move(sections);
  }

  const KvGeometry& geometry() const { return kv_; }
  const PageShape& shape() const { return shape_; }
  KvMemory& memory() { return memory_; }
  void set_bf16() { kv_.bf16 = true; }

  // The hello of a worker that has this cache.
  v1::PeerHello Hello(v1::WorkerRole role, uint64_t incarnation,
                      int32_t num_heads_of_model) const {
    v1::PeerHello hello = MakeHello(role, incarnation, "shaped");
    hello.mutable_fingerprint()->set_block_size(shape_.block_size);
    hello.mutable_fingerprint()->set_num_kv_heads(num_heads_of_model);
    hello.set_first_kv_head(shape_.first_head);
    hello.set_kv_heads(shape_.num_heads);
    return hello;
  }

  // Calls visit(layer, head of the model, section, row, unit of the sequence,
  // its bytes here) for units [first, end) of the heads [first_head, end_head)
  // of a sequence whose blocks are `blocks`, beginning at unit `first_unit`.
  template <typename Visit>
  void ForUnits(const std::vector<BlockId>& blocks, int32_t first_unit,
                int32_t first, int32_t end, int32_t first_head,
                int32_t end_head, const Visit& visit) {
    const int32_t per_block = shape_.block_size / kUnit;
    const int64_t head_bytes = kv_.page_bytes / shape_.num_heads;
    for (int32_t layer = 0; layer < kv_.num_layers; ++layer) {
      for (int32_t unit = first; unit < end; ++unit) {
        const int32_t at = unit - first_unit;
        const absl::Span<std::byte> page =
            memory_.Page(layer, blocks[at / per_block]);
        for (int32_t head = first_head; head < end_head; ++head) {
          int64_t offset = (head - shape_.first_head) * head_bytes;
          for (size_t s = 0; s < kv_.sections.size(); ++s) {
            const PageSection& section = kv_.sections[s];
            for (int32_t row = 0; row < section.rows; ++row) {
              visit(layer, head, static_cast<int32_t>(s), row, unit,
                    page.subspan(offset + at % per_block * section.unit_bytes,
                                 section.unit_bytes));
              offset += per_block * section.unit_bytes;
            }
          }
        }
      }
    }
  }

  static std::byte Content(int32_t layer, int32_t head, int32_t section,
                           int32_t row, int32_t unit, size_t i) {
    uint64_t x = 1 + i;
    for (int32_t part : {layer, head, section, row, unit}) {
      x = (x + static_cast<uint64_t>(part) + 1) * 0x9E3779B97F4A7C15u;
      x ^= x >> 29;
    }
    return static_cast<std::byte>(x >> 13);
  }

  // All units [0, units) of a sequence.
  void Fill(const std::vector<BlockId>& blocks, int32_t units) {
    ForUnits(blocks, 0, 0, units, shape_.first_head,
             shape_.first_head + shape_.num_heads,
             [](int32_t layer, int32_t head, int32_t section, int32_t row,
                int32_t unit, absl::Span<std::byte> bytes) {
               for (size_t i = 0; i < bytes.size(); ++i) {
                 bytes[i] = Content(layer, head, section, row, unit, i);
               }
             });
  }
  // Bytes of units [first, end) of these heads that are not what they should
  // be.
  int64_t Wrong(const std::vector<BlockId>& blocks, int32_t first_unit,
                int32_t end, int32_t first_head, int32_t end_head) {
    int64_t wrong = 0;
    ForUnits(blocks, first_unit, first_unit, end, first_head, end_head,
             [&](int32_t layer, int32_t head, int32_t section, int32_t row,
                 int32_t unit, absl::Span<std::byte> bytes) {
               for (size_t i = 0; i < bytes.size(); ++i) {
                 wrong +=
                     bytes[i] != Content(layer, head, section, row, unit, i);
               }
             });
    return wrong;
  }

 private:
  static int64_t PageBytes(const PageShape& shape,
                           const std::vector<PageSection>& sections) {
    int64_t bytes = 0;
    for (const PageSection& s : sections) bytes += s.rows * s.unit_bytes;
    return bytes * (shape.block_size / kUnit) * shape.num_heads;
  }

  const PageShape shape_;
  KvMemory memory_;
  KvGeometry kv_;
};

}  // namespace baton::kv_transfer
