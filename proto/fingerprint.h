// When two workers fit each other.
#pragma once

#include <string>

#include "baton/v1/peer.pb.h"

namespace baton::proto {

// Version of the messages between workers and of what a page holds
// (engine/kv_layout.h). Raised when either changes in a way that an older
// worker cannot read.
inline constexpr uint32_t kPeerProtocolVersion = 3;

// Empty when they fit: equal, but for block sizes of which one is a multiple of
// the other (kv_transfer/page_map.h). Otherwise each field that does not fit,
// with both values, such as
// "num_layers (6 here, 8 there); block_size (32 here, 48 there)".
std::string DescribeDifference(const v1::ModelFingerprint& here,
                               const v1::ModelFingerprint& there);

}  // namespace baton::proto
