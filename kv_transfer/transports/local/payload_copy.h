// One payload on its way from a peer's memory to its landing: copies it piece
// by piece, and shows each piece while it is in the nearest cache, so that
// reading it once more costs little.
//
// Every byte of the source is read once. What is shown is what the landing
// gets, whatever the peer does to its memory meanwhile.
//
// One thread at a time; both memories outlive it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "kv_transfer/transport.h"

namespace baton::kv_transfer {

class PayloadCopy final {
 public:
  // How the landing is written.
  enum class Stores {
    // Into the caches: for payloads that fit there, and whose landing may be
    // there already.
    kCached,
    // Past them: for what would only push out everything else. Memory is not
    // read before it is overwritten.
    kStreaming,
  };

  // REQUIRES: both add up to the same number of bytes.
  PayloadCopy(std::vector<ByteSpan> source,
              std::vector<absl::Span<std::byte>> target);

  // Copies `max_bytes` more, or what is left, or up to one piece in excess.
  // `show` is called with each piece, in order. Returns how many bytes it were.
  uint64_t Advance(uint64_t max_bytes, Stores stores,
                   absl::FunctionRef<void(ByteSpan)> show);

  bool done() const { return next_source_ == source_.size(); }

 private:
  // What is left: pieces are cut off at the front.
  std::vector<ByteSpan> source_;
  std::vector<absl::Span<std::byte>> target_;
  size_t next_source_ = 0;
  size_t next_target_ = 0;
};

}  // namespace baton::kv_transfer
