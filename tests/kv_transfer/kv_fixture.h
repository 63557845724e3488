// KV memory, hellos and page contents for tests of the hand-off: what a page
// holds follows from where it belongs, so that the other side, even in another
// process, can tell whether it came right.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "common/shared_memory.h"
#include "kv_transfer/handoff.h"

namespace baton::kv_transfer {

inline constexpr std::byte kUntouched{0xA5};
// Tokens of a block, as MakeHello says.
inline constexpr int32_t kBlockTokens = 16;

// One worker's KV memory, which peers may be given to read. Layers lie apart,
// so that a page written past the end of its layer would be seen.
class KvMemory final {
 public:
  // The same memory once more, where the CPU has no way to it.
  class Mirror {
   public:
    virtual ~Mirror() = default;
    virtual KvGeometry Place(KvGeometry kv) = 0;
    // Brings a part of the memory there, or all of it back.
    virtual void Push(absl::Span<const std::byte> part) = 0;
    virtual void Pull() = 0;
  };
  using MakeMirror =
      std::function<std::unique_ptr<Mirror>(absl::Span<std::byte>)>;

  // With `make_mirror`, peers reach that, and what is written and looked at
  // here is what is there.
  KvMemory(int32_t num_layers, int32_t num_blocks, int64_t page_bytes,
           const MakeMirror& make_mirror = nullptr)
      : shared_(*SharedMemory::Create(
            (num_blocks * page_bytes + kGapBytes) * num_layers, "a test")) {
    kv_.memory = shared_.memory();
    Clear();
    kv_.descriptor = shared_.descriptor();
    kv_.num_layers = num_layers;
    kv_.layer_stride_bytes = num_blocks * page_bytes + kGapBytes;
    kv_.page_bytes = page_bytes;
    kv_.num_blocks = num_blocks;
    if (make_mirror) mirror_ = make_mirror(kv_.memory);
  }

  KvGeometry geometry() const {
    return mirror_ == nullptr ? kv_ : mirror_->Place(kv_);
  }
  std::vector<std::byte> bytes() const {
    return {kv_.memory.begin(), kv_.memory.end()};
  }

  // As at the start.
  void Clear() {
    std::memset(kv_.memory.data(), static_cast<int>(kUntouched),
                kv_.memory.size());
    if (mirror_ != nullptr) mirror_->Push(kv_.memory);
  }

  absl::Span<std::byte> Page(int32_t layer, BlockId block) {
    return kv_.memory.subspan(kv_.PageOffset(layer, block), kv_.page_bytes);
  }

  // What logical block `index` of a sequence holds in `layer`.
  static std::vector<std::byte> Content(uint64_t sequence, int32_t layer,
                                        int32_t index, int64_t page_bytes) {
    std::vector<std::byte> page(page_bytes);
    uint64_t x = sequence * 0x9E3779B97F4A7C15u + layer * 1000003u + index + 1;
    for (std::byte& b : page) {
      x ^= x << 13;
      x ^= x >> 7;
      x ^= x << 17;
      b = static_cast<std::byte>(x >> 24);
    }
    return page;
  }
  void Write(uint64_t sequence, int32_t layer, int32_t index, BlockId block) {
    const auto page = Content(sequence, layer, index, kv_.page_bytes);
    std::memcpy(Page(layer, block).data(), page.data(), page.size());
    if (mirror_ != nullptr) mirror_->Push(Page(layer, block));
  }
  bool Holds(uint64_t sequence, int32_t layer, int32_t index, BlockId block) {
    const auto page = Content(sequence, layer, index, kv_.page_bytes);
    return std::memcmp(Page(layer, block).data(), page.data(), page.size()) ==
           0;
  }
  bool HoldsAll(uint64_t sequence, int32_t first_index,
                const std::vector<BlockId>& blocks) {
    if (mirror_ != nullptr) mirror_->Pull();
    for (int32_t layer = 0; layer < kv_.num_layers; ++layer) {
      for (size_t i = 0; i < blocks.size(); ++i) {
        const int32_t index = first_index + static_cast<int32_t>(i);
        if (!Holds(sequence, layer, index, blocks[i])) return false;
      }
    }
    return true;
  }
  // Whether every byte outside of `blocks` is as it was at the start.
  bool UntouchedExcept(const std::vector<BlockId>& blocks) {
    if (mirror_ != nullptr) mirror_->Pull();
    std::vector<std::byte> expected(kv_.memory.size(), kUntouched);
    for (int32_t layer = 0; layer < kv_.num_layers; ++layer) {
      for (BlockId block : blocks) {
        std::memcpy(expected.data() + kv_.PageOffset(layer, block),
                    Page(layer, block).data(), kv_.page_bytes);
      }
    }
    return kv_.memory == absl::MakeSpan(expected);
  }

 private:
  static constexpr int64_t kGapBytes = 64;
  SharedMemory shared_;
  KvGeometry kv_;
  std::unique_ptr<Mirror> mirror_;
};

inline v1::PeerHello MakeHello(v1::WorkerRole role, uint64_t incarnation,
                               const std::string& name) {
  v1::PeerHello hello;
  hello.set_role(role);
  hello.set_incarnation(incarnation);
  hello.set_worker_name(name);
  v1::ModelFingerprint& fingerprint = *hello.mutable_fingerprint();
  fingerprint.set_model_identity("test-model");
  fingerprint.set_architecture("LlamaForCausalLM");
  fingerprint.set_num_layers(4);
  fingerprint.set_num_kv_heads(2);
  fingerprint.set_head_dim(16);
  fingerprint.set_vocab_size(1000);
  fingerprint.set_kv_dtype("bf16");
  fingerprint.set_block_size(kBlockTokens);
  fingerprint.set_protocol_version(1);
  return hello;
}

}  // namespace baton::kv_transfer
