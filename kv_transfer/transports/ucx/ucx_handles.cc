#include "kv_transfer/transports/ucx/ucx_handles.h"

#include "absl/strings/str_cat.h"

namespace baton::kv_transfer {
namespace {

absl::StatusCode CodeOf(ucs_status_t status) {
  // ucs_status_t has dozens of values; those without a better name are
  // INTERNAL.
  if (status == UCS_ERR_CANCELED) return absl::StatusCode::kCancelled;
  if (status == UCS_ERR_BUSY) return absl::StatusCode::kAlreadyExists;
  if (status == UCS_ERR_NO_DEVICE || status == UCS_ERR_UNSUPPORTED) {
    return absl::StatusCode::kFailedPrecondition;
  }
  if (status == UCS_ERR_NO_MEMORY || status == UCS_ERR_NO_RESOURCE) {
    return absl::StatusCode::kResourceExhausted;
  }
  if (status == UCS_ERR_CONNECTION_RESET || status == UCS_ERR_NOT_CONNECTED ||
      status == UCS_ERR_ENDPOINT_TIMEOUT || status == UCS_ERR_UNREACHABLE ||
      status == UCS_ERR_REJECTED || status == UCS_ERR_TIMED_OUT) {
    return absl::StatusCode::kUnavailable;
  }
  return absl::StatusCode::kInternal;
}

}  // namespace

absl::Status UcxStatus(ucs_status_t status, absl::string_view what) {
  if (status == UCS_OK) return absl::OkStatus();
  return absl::Status(CodeOf(status),
                      absl::StrCat(what, ": ", ucs_status_string(status)));
}

}  // namespace baton::kv_transfer
