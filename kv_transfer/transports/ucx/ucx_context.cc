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
// of the one that every other needs; and of the one from process to process.
constexpr char kCudaTransports[] = "cuda";
constexpr char kCudaCopy[] = "cuda_copy";
constexpr char kCudaIpc[] = "cuda_ipc";

// Whether its cuda_ipc waits for copies that are under way before it forgets
// their peer. Versions before end with SIGSEGV when a peer dies in the middle.
bool IpcOutlivesPeers() {
  unsigned major = 0, minor = 0, release = 0;
  ucp_get_version(&major, &minor, &release);
  return std::pair(major, minor) >= std::pair(1u, 21u);
}

// A list that says what is left out, as UCX has them, has one item here.
std::vector<std::string> Names(const std::string& tls) {
  if (absl::StartsWith(tls, "^")) return {tls};
  return absl::StrSplit(tls, ',');
}

// Whether transports for CUDA are in the list, or are left out on purpose.
bool SpeaksOfCuda(const std::string& tls) {
  return absl::c_any_of(Names(tls), [](const std::string& name) {
    return name == "all" || absl::StartsWith(name, kCudaTransports) ||
           absl::StartsWith(name, "^");
  });
}

bool HasCudaIpc(const std::string& tls) {
  return absl::c_any_of(Names(tls), [](const std::string& name) {
    return name == "all" || name == kCudaTransports || name == kCudaIpc ||
           (absl::StartsWith(name, "^") && !absl::StrContains(name, "cuda"));
  });
}

bool IsTcpAlone(const std::string& tls) {
  return absl::c_all_of(Names(tls), [](const std::string& name) {
    return name == "tcp" || absl::StartsWith(name, kCudaTransports);
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
  const std::string failed = absl::StrCat(
      "UCX ", ucp_get_version_string(),
      " reaches no memory of CUDA devices by the transports '", tls, "': ");
  if (!SpeaksOfCuda(tls)) {
    return absl::FailedPreconditionError(
        absl::StrCat(failed, "UCX_TLS has to name ", kCudaTransports));
  }
  return absl::FailedPreconditionError(
      absl::StrCat(failed, "that takes a UCX that was built with CUDA, as ",
                   "Debian's is not"));
}

// Has who receives read from the other's memory, or else UCX bring messages. A
// peer that writes instead may do so after we have closed it, to what is
// another transfer's by then: seen with cuda_ipc of 1.20.1, of a process that
// was stopped in between and went on.
ucs_status_t LetReceiversRead(ucp_config_t* config) {
  const char* const operators = std::getenv("UCX_RNDV_SCHEME");
  if (operators == nullptr || absl::string_view(operators) != "am") {
    if (operators != nullptr) {
      LOG(WARNING)
          << "kv_transfer: UCX_RNDV_SCHEME=" << operators
          << " is not taken: a device's memory is read by who receives";
    }
    const ucs_status_t status =
        ucp_config_modify(config, "RNDV_SCHEME", "get_zcopy");
    if (status != UCS_OK) return status;
  }
  return UCS_OK;
}

// Has cuda_ipc read, too, where two GPUs have no NVLink between them. False: it
// does not know how, as without CUDA.
bool LetCudaIpcRead(ucp_config_t* config) {
  return ucp_config_modify(config, "CUDA_IPC_ENABLE_GET_ZCOPY", "on") == UCS_OK;
}

}  // namespace

std::string UcxTransportList(const UcxOptions& options) {
  if (const char* operators = std::getenv("UCX_TLS"); operators != nullptr) {
    return operators;
  }
  if (options.memory == UcxMemory::kHost || SpeaksOfCuda(options.tls)) {
    return options.tls;
  }
  return absl::StrCat(options.tls, ",",
                      IpcOutlivesPeers() ? kCudaTransports : kCudaCopy);
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
  bool ipc_reads = false;
  if (options.memory == UcxMemory::kCuda) {
    BATON_RETURN_IF_ERROR(UcxStatus(LetReceiversRead(config.get()), what));
    ipc_reads = LetCudaIpcRead(config.get());
  }
  // Left to itself, UCX may take any device, also one that leads nowhere. An
  // operator's UCX_NET_DEVICES wins.
  const std::string device = DeviceWithAddress(options.advertise_host.empty()
                                                   ? options.listen_host
                                                   : options.advertise_host);
  if (IsTcpAlone(tls) && !device.empty() &&
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
    if (!ipc_reads && HasCudaIpc(tls)) {
      return absl::FailedPreconditionError(absl::StrCat(
          "UCX ", ucp_get_version_string(), ": its cuda_ipc (transports '", tls,
          "') cannot be told to read from peers, and would have them write; ",
          "name ", kCudaCopy, " alone"));
    }
    if (!IpcOutlivesPeers() && HasCudaIpc(tls)) {
      LOG(WARNING) << "kv_transfer: with cuda_ipc of UCX "
                   << ucp_get_version_string() << " (transports '" << tls
                   << "') this process may end when a peer dies: take "
                   << kCudaCopy << " alone, or UCX 1.21";
    }
  }
  return context;
}

}  // namespace baton::kv_transfer
