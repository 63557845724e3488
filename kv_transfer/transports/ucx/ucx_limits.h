// Sizes that both ends of a UCX connection keep to.
#pragma once

#include <cstdint>

namespace baton::kv_transfer {

inline constexpr uint64_t kUcxMaxHeaderBytes = 4096;
// A page larger than the usual 1 MB message still goes in one.
inline constexpr uint64_t kUcxMaxPayloadBytes = uint64_t{64} << 20;
inline constexpr uint32_t kUcxMaxPayloadExtents = 64;

}  // namespace baton::kv_transfer
