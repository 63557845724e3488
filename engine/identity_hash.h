// The hash that names what was loaded: a model, an adapter.
//
// One thread.
#pragma once

#include <xxhash.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/log.h"

namespace baton::engine {

// XXH3-128 over values that are each written with a fixed width or a length
// first, so that no two different sequences of values give the same bytes.
class IdentityHash final {
 public:
  IdentityHash() : state_(XXH3_createState()) {
    CHECK(state_ != nullptr);
    CHECK_EQ(XXH3_128bits_reset(state_.get()), XXH_OK);
  }

  void AddInt(int64_t value) {
    std::byte bytes[8];
    for (int i = 0; i < 8; ++i) {
      bytes[i] = static_cast<std::byte>(static_cast<uint64_t>(value) >> 8 * i);
    }
    AddBytes(bytes);
  }
  void AddDouble(double value) { AddInt(std::bit_cast<int64_t>(value)); }
  void AddString(absl::string_view text) {
    AddInt(static_cast<int64_t>(text.size()));
    AddBytes(absl::MakeConstSpan(
        reinterpret_cast<const std::byte*>(text.data()), text.size()));
  }
  void AddBytes(absl::Span<const std::byte> bytes) {
    CHECK_EQ(XXH3_128bits_update(state_.get(), bytes.data(), bytes.size()),
             XXH_OK);
  }

  // 32 hexadecimal digits.
  std::string Hex() const {
    const XXH128_hash_t hash = XXH3_128bits_digest(state_.get());
    return absl::StrFormat("%016x%016x", hash.high64, hash.low64);
  }

 private:
  struct FreeState {
    void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
  };
  std::unique_ptr<XXH3_state_t, FreeState> state_;
};

}  // namespace baton::engine
