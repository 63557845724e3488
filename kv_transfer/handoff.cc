#include "kv_transfer/handoff.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "kv_transfer/link_probe.h"
#include "kv_transfer/page_map.h"
#include "kv_transfer/wire.h"

namespace baton::kv_transfer {

const char* TransferOutcomeName(TransferOutcome outcome) {
  switch (outcome) {
    case TransferOutcome::kOk:
      return "ok";
    case TransferOutcome::kCancelled:
      return "cancelled";
    case TransferOutcome::kDeadlineExceeded:
      return "deadline_exceeded";
    case TransferOutcome::kUnknownTransfer:
      return "unknown_transfer";
    case TransferOutcome::kWrongPeer:
      return "wrong_peer";
    case TransferOutcome::kOutOfRange:
      return "out_of_range";
    case TransferOutcome::kCountsDiffer:
      return "counts_differ";
    case TransferOutcome::kChecksumMismatch:
      return "checksum_mismatch";
    case TransferOutcome::kTransportFailed:
      return "transport_failed";
    case TransferOutcome::kPeerLost:
      return "peer_lost";
    case TransferOutcome::kLeaseExpired:
      return "lease_expired";
  }
  return "unknown";
}

void CheckGeometry(const KvGeometry& kv) {
  CHECK_GT(kv.num_layers, 0);
  CHECK_GT(kv.num_blocks, 0);
  CHECK_GT(kv.page_bytes, 0);
  CHECK_GE(kv.layer_stride_bytes, kv.page_bytes * kv.num_blocks);
  CHECK_LE(kv.PageOffset(kv.num_layers - 1, kv.num_blocks - 1) + kv.page_bytes,
           kv.memory.size());
}

bool LeaseExpired(const HandoffOptions& options,
                  const std::optional<uint64_t>& holder, absl::Time now) {
  return holder.has_value() && options.lease_until &&
         now >= options.lease_until(*holder);
}

absl::Status CheckOptions(const HandoffOptions& options) {
  CheckGeometry(options.kv);
  const PageShape self = ShapeOf(options.self);
  CHECK_EQ(options.kv.page_bytes % std::max(self.num_heads, 1), 0);
  if (!options.kv.sections.empty()) {
    int64_t bytes = 0;
    for (const PageSection& section : options.kv.sections) {
      bytes += section.rows * section.unit_bytes;
    }
    CHECK_EQ(self.num_heads * bytes * (self.block_size / 16),
             options.kv.page_bytes);
  }
  if (options.wire.encoding != WireEncoding::kExact &&
      (!options.kv.bf16 || options.kv.sections.empty())) {
    return absl::InvalidArgumentError(
        "KV on the wire in another form: only for a cache in bf16");
  }
  if (options.kv.hasher != nullptr) {
    if (options.wire.encoding != WireEncoding::kExact) {
      return absl::InvalidArgumentError(
          "KV on the wire in another form: only for a cache in memory of the "
          "host");
    }
    CHECK(!options.probe_links ||
          options.kv.spare.size() >= LinkProbe::kMaxPayloadBytes);
  }
  CHECK(options.clock != nullptr);
  // Half of what a message may hold: a reply carries it and a reason.
  constexpr size_t kMaxSelfBytes = wire::kMaxHelloBytes / 2;
  const size_t self_bytes = options.self.ByteSizeLong();
  if (self_bytes > kMaxSelfBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "worker_name and fingerprint take ", self_bytes,
        " bytes in a hello, more than the ", kMaxSelfBytes, " allowed"));
  }
  return absl::OkStatus();
}

}  // namespace baton::kv_transfer
