#include "kv_transfer/transports/ucx/ucx_context.h"

#include <cstdlib>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "kv_transfer/transports/ucx/network_device.h"

namespace baton::kv_transfer {
namespace {

// UCX's names: of all its transports for CUDA, with which each of them begins;
// and of the one that every other needs.
constexpr char kCudaTransports[] = "cuda";
constexpr char kCudaCopy[] = "cuda_copy";

// Whether its cuda_ipc waits for copies that are under way before it forgets
// their peer. Versions before end with SIGSEGV when a peer dies in the middle.
bool IpcOutlivesPeers() {
  unsigned major = 0, minor = 0, release = 0;
  ucp_get_version(&major, &minor, &release);
  return std::pair(major, minor) >= std::pair(1u, 21u);
}

std::string WithCuda(const std::string& tls) {
  return absl::StrCat(tls, ",",
                      IpcOutlivesPeers() ? kCudaTransports : kCudaCopy);
}

// Whether transports for CUDA are in the list, or are left out on purpose.
bool SpeaksOfCuda(const std::string& tls) {
  if (absl::StartsWith(tls, "^")) return true;
  const std::vector<std::string> names = absl::StrSplit(tls, ',');
  return absl::c_any_of(names, [](const std::string& name) {
    return name == "all" || absl::StartsWith(name, kCudaTransports);
  });
}

absl::Status CheckReachesCuda(ucp_context_h context, const std::string& tls) {
  ucp_context_attr_t attr{};
  attr.field_mask = UCP_ATTR_FIELD_MEMORY_TYPES;
  BATON_RETURN_IF_ERROR(
      UcxStatus(ucp_context_query(context, &attr), "ucp_context_query"));
  if ((attr.memory_types & UCS_BIT(UCS_MEMORY_TYPE_CUDA)) != 0) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "UCX ", ucp_get_version_string(), " reaches no memory of CUDA devices ",
      "by the transports '", tls, "': that takes a UCX that was built with ",
      "CUDA, as Debian's is not"));
}

// Has who receives read from the other's memory, or else UCX bring messages. A
// peer that writes instead may do so after we have closed it, to what is
// another transfer's by then: seen with cuda_ipc of 1.20.1, of a process that
// was stopped in between and went on.
ucs_status_t LetReceiversRead(ucp_config_t* config) {
  const char* const operators = std::getenv("UCX_RNDV_SCHEME");
  if (operators == nullptr || absl::string_view(operators) != "am") {
    const ucs_status_t status =
        ucp_config_modify(config, "RNDV_SCHEME", "get_zcopy");
    if (status != UCS_OK) return status;
  }
  // Else it does not read where two GPUs have no NVLink between them. Where UCX
  // has no CUDA it does not know the name.
  ucp_config_modify(config, "CUDA_IPC_ENABLE_GET_ZCOPY", "on");
  return UCS_OK;
}

}  // namespace

std::string UcxTransportList(const UcxOptions& options) {
  if (const char* operators = std::getenv("UCX_TLS"); operators != nullptr) {
    return operators;
  }
  if (options.memory == UcxMemory::kHost || SpeaksOfCuda(options.tls)) {
    return options.tls;
  }
  return WithCuda(options.tls);
}

absl::StatusOr<UcxContext> OpenUcxContext(const UcxOptions& options) {
  ucp_config_t* raw_config = nullptr;
  BATON_RETURN_IF_ERROR(
      UcxStatus(ucp_config_read(nullptr, nullptr, &raw_config),
                "reading the UCX environment"));
  const UcxConfig config(raw_config);
  const std::string tls = UcxTransportList(options);
  const std::string what =
      absl::StrCat("UCX transports '", tls, "' are not available");
  BATON_RETURN_IF_ERROR(
      UcxStatus(ucp_config_modify(config.get(), "TLS", tls.c_str()), what));
  if (options.memory == UcxMemory::kCuda) {
    BATON_RETURN_IF_ERROR(UcxStatus(LetReceiversRead(config.get()), what));
  }
  // Left to itself, UCX may take any device, also one that leads nowhere. An
  // operator's UCX_NET_DEVICES wins.
  const std::string device = DeviceWithAddress(options.advertise_host.empty()
                                                   ? options.listen_host
                                                   : options.advertise_host);
  const bool only_tcp = tls == "tcp" || tls == WithCuda("tcp");
  if (only_tcp && !device.empty() &&
      std::getenv("UCX_NET_DEVICES") == nullptr) {
    BATON_RETURN_IF_ERROR(UcxStatus(
        ucp_config_modify(config.get(), "NET_DEVICES", device.c_str()), what));
    LOG(INFO) << "kv_transfer: UCX uses network device " << device;
  }
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_NAME;
  // No remote memory access: a peer's put or get finds no handler.
  params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  params.name = "baton";
  ucp_context_h raw_context = nullptr;
  BATON_RETURN_IF_ERROR(
      UcxStatus(ucp_init(&params, config.get(), &raw_context), what));
  UcxContext context(raw_context);
  if (options.memory == UcxMemory::kCuda) {
    BATON_RETURN_IF_ERROR(CheckReachesCuda(context.get(), tls));
    if (!IpcOutlivesPeers() && tls != WithCuda(options.tls)) {
      LOG(WARNING) << "kv_transfer: UCX " << ucp_get_version_string()
                   << ": where cuda_ipc is among the transports (" << tls
                   << "), this process may end when a peer dies; name "
                   << kCudaCopy << " alone, or take UCX 1.21";
    }
  }
  return context;
}

}  // namespace baton::kv_transfer
