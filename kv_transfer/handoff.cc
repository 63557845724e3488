#include "kv_transfer/handoff.h"

#include "absl/strings/str_cat.h"
#include "common/log.h"
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
