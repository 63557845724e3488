// KV pages in bf16 as a byte per element, for links that are slow: half of the
// bytes, for some precision. An encoded wire page (kv_transfer/page_map.h) is
//
//   float32 scale of each part, in order; a part is one section of one head
//   a byte for each element, in the page's order
//
// little-endian, element = scale * byte. kInt8: the byte is a signed integer,
// scale = largest magnitude / 127. kFp8: the byte is e4m3 (OCP 8-bit floating
// point, "fn": no infinities), scale = largest magnitude / 448. Rounded to
// nearest, ties to even. A part with a value that is not finite becomes NaN
// throughout.
//
// Pure functions, any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "kv_transfer/handoff.h"
#include "kv_transfer/page_map.h"
#include "kv_transfer/transport.h"

namespace baton::kv_transfer {

// "exact", "int8", "fp8".
const char* WireEncodingName(WireEncoding encoding);
std::optional<WireEncoding> WireEncodingFromName(absl::string_view name);

// Bytes of one wire page as it goes over the wire.
int64_t EncodedPageBytes(const PageMap& map, WireEncoding encoding);

// REQUIRES: not kExact; `page` has map.page_bytes() bytes, `out`
// EncodedPageBytes().
void EncodePage(const PageMap& map, WireEncoding encoding, ByteSpan page,
                absl::Span<std::byte> out);
// The other way round; any bytes give a page.
void DecodePage(const PageMap& map, WireEncoding encoding, ByteSpan encoded,
                absl::Span<std::byte> page);

}  // namespace baton::kv_transfer
