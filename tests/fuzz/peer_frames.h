// A worker's cache and the messages of a peer, for the fuzz targets of the
// hand-off: well-formed ones, whose fields are drawn from few values so that
// they meet, altered ones, and any bytes. One thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kv_transfer/handoff.h"
#include "kv_transfer/wire.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/kv_transfer/kv_fixture.h"

namespace baton::fuzz {

inline constexpr int32_t kLayers = 4;
inline constexpr int32_t kBlocks = 16;
inline constexpr int32_t kHeads = 2;
inline constexpr int64_t kHeadBytes = 64;
inline constexpr int64_t kPageBytes = kHeads * kHeadBytes;
inline constexpr Incarnation kSelf{77};
// What a target does with one input.
inline constexpr int kMaxActions = 300;

// Drawn time: what passes when the target says so.
class ScriptedClock final : public Clock {
 public:
  absl::Time Now() const override { return now_; }
  void Advance(absl::Duration by) { now_ += by; }

 private:
  absl::Time now_ = absl::UnixEpoch() + absl::Hours(1);
};

// KV memory of bf16, and who has it.
class Cache final {
 public:
  Cache() : memory_(kLayers * kBlocks * kPageBytes) {
    kv_.memory = absl::MakeSpan(memory_);
    kv_.num_layers = kLayers;
    kv_.layer_stride_bytes = kBlocks * kPageBytes;
    kv_.page_bytes = kPageBytes;
    kv_.num_blocks = kBlocks;
    kv_.sections = {{.rows = 1, .unit_bytes = kHeadBytes / 2},
                    {.rows = 1, .unit_bytes = kHeadBytes / 2}};
    kv_.bf16 = true;
  }

  const kv_transfer::KvGeometry& geometry() const { return kv_; }

  // The block that a byte of the memory belongs to.
  static BlockId BlockAt(uint64_t offset) {
    return static_cast<BlockId>(offset / kPageBytes % kBlocks);
  }
  // The blocks that an extent touches.
  static std::vector<BlockId> BlocksOf(const kv_transfer::Extent& extent) {
    std::vector<BlockId> blocks;
    for (uint64_t at = extent.offset / kPageBytes;
         at * kPageBytes < extent.offset + extent.length; ++at) {
      blocks.push_back(BlockAt(at * kPageBytes));
    }
    return blocks;
  }

 private:
  std::vector<std::byte> memory_;
  kv_transfer::KvGeometry kv_;
};

// The life of the peer with that number.
inline Incarnation LifeOf(uint32_t peer) { return Incarnation{1000 + peer}; }

// Mostly one that fits.
inline v1::PeerHello DrawHello(FuzzInput& input, v1::WorkerRole role,
                               uint32_t peer) {
  v1::PeerHello hello =
      kv_transfer::MakeHello(role, static_cast<uint64_t>(LifeOf(peer)), "peer");
  v1::ModelFingerprint& model = *hello.mutable_fingerprint();
  switch (input.Below(16)) {
    case 0:
      model.set_block_size(32);
      break;
    case 1:
      model.set_block_size(input.Number<uint32_t>());
      break;
    case 2:
      hello.set_kv_heads(1);
      hello.set_first_kv_head(input.Below(3));
      break;
    case 3:
      hello.set_kv_heads(input.Number<uint32_t>());
      hello.set_first_kv_head(input.Number<uint32_t>());
      break;
    case 4:
      hello.set_incarnation(input.Byte());
      break;
    case 5:
      hello.set_worker_name(std::string(input.Take(input.Byte())));
      break;
    case 6:
      model.set_architecture(std::string(input.Take(input.Byte())));
      break;
    case 7:
      hello.set_role(v1::WORKER_ROLE_UNSPECIFIED);
      break;
    default:
      break;
  }
  return hello;
}

// The message with its header, right but for what the input alters.
inline std::string DrawFrame(FuzzInput& input, uint32_t peer,
                             kv_transfer::wire::Body body) {
  const uint8_t alter = input.Below(16);
  kv_transfer::wire::Message message;
  message.from = alter == 1 ? Incarnation{input.Byte()} : LifeOf(peer);
  message.to = alter == 2 ? Incarnation{input.Byte()} : kSelf;
  message.body = std::move(body);
  std::string bytes = kv_transfer::wire::Encode(message);
  if (alter == 3) {
    bytes[input.Byte() % bytes.size()] ^= static_cast<char>(input.Byte());
  } else if (alter == 4) {
    bytes.resize(input.Byte() % bytes.size() + 1);
  } else if (alter == 5) {
    absl::StrAppend(&bytes, input.Take(input.Byte()));
  }
  return bytes;
}

inline TransferId DrawTransfer(FuzzInput& input) {
  return TransferId{input.Below(4)};
}

}  // namespace baton::fuzz
