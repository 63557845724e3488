// The tokens <0x00> to <0xFF> of SentencePiece-style vocabularies with byte
// fallback.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/strings/string_view.h"

namespace baton::router {

// The byte of a token of the form <0xHH>, H a hexadecimal digit of either
// case. Any thread.
std::optional<uint8_t> ByteOfToken(absl::string_view token);

}  // namespace baton::router
