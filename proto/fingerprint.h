// When two workers fit each other.
#pragma once

#include <string>

#include "baton/v1/peer.pb.h"

namespace baton::proto {

// Version of the messages between workers and of what a page holds
// (engine/kv_layout.h). Raised when either changes in a way that an older
// worker cannot read.
inline constexpr uint32_t kPeerProtocolVersion = 2;

// Empty when equal; otherwise each field that differs with both values, such
// as "num_layers (6 here, 8 there); block_size (16 here, 32 there)".
std::string DescribeDifference(const v1::ModelFingerprint& here,
                               const v1::ModelFingerprint& there);

}  // namespace baton::proto
