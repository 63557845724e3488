// Has an engine's device hash the pages of its staged blocks, for a hand-off.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "engine/kv_stage.h"
#include "kv_transfer/page_hasher.h"
#include "kv_transfer/transport.h"

namespace baton::worker {

class StagedPageHasher final : public kv_transfer::PageHasher {
 public:
  // REQUIRES: staged blocks on a device. The stage outlives it.
  explicit StagedPageHasher(engine::KvStage* stage) : stage_(stage) {}

  std::vector<uint64_t> HashPages(absl::Span<const kv_transfer::ByteSpan> runs,
                                  int64_t page_bytes,
                                  uint64_t first_seed) override {
    return stage_->HashPages(runs, page_bytes, first_seed);
  }

 private:
  engine::KvStage* const stage_;
};

}  // namespace baton::worker
