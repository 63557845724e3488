#include "kv_transfer/transports/ucx/ucx_environment.h"

#include <dlfcn.h>
#include <signal.h>
#include <ucs/debug/debug.h>

#include <array>
#include <cstdlib>
#include <cstring>

namespace baton::kv_transfer {
namespace {

// Whether UCX handles the signal, which newer ones do not by default. It warns
// of those that are taken from it and that it does not have.
bool IsUcxs(int signal_number) {
  struct sigaction now {};
  Dl_info owner{};
  return sigaction(signal_number, nullptr, &now) == 0 &&
         dladdr(reinterpret_cast<void*>(now.sa_handler), &owner) != 0 &&
         owner.dli_fname != nullptr &&
         std::strstr(owner.dli_fname, "libucs") != nullptr;
}

}  // namespace

void SetUcxEnvironment() {
  constexpr struct {
    const char* name;
    const char* value;
  } kSettings[] = {
      // Measured over loopback: 1.3 GB/s with the defaults (8K, 64K), 4.0-4.5
      // with these. ucp_config_modify accepts them and does nothing (1.13.1).
      {"UCX_TCP_TX_SEG_SIZE", "64K"},
      {"UCX_TCP_RX_SEG_SIZE", "128K"},
  };
  for (const auto& setting : kSettings) {
    setenv(setting.name, setting.value, /*replace=*/0);
  }
  if (std::getenv("UCX_HANDLE_ERRORS") == nullptr) {
    // UCX installs its crash handlers, and a debugging one for SIGHUP, when it
    // is loaded, so that an environment variable set here would be too late.
    for (int signal_number :
         std::array{SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGHUP}) {
      if (IsUcxs(signal_number)) ucs_debug_disable_signal(signal_number);
    }
  }
}

}  // namespace baton::kv_transfer
