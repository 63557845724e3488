// UCX objects, each owned by exactly one move-only handle, and UCX errors as
// Status. Used on the progress thread only. Endpoints have no handle: closing
// one is a request of its own that takes a while (ucx_loop.h).
#pragma once

#include <ucp/api/ucp.h>

#include <memory>
#include <string>
#include <type_traits>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace baton::kv_transfer {

struct UcxConfigDeleter {
  void operator()(ucp_config_t* config) const { ucp_config_release(config); }
};
using UcxConfig = std::unique_ptr<ucp_config_t, UcxConfigDeleter>;

struct UcxContextDeleter {
  void operator()(ucp_context_h context) const { ucp_cleanup(context); }
};
using UcxContext =
    std::unique_ptr<std::remove_pointer_t<ucp_context_h>, UcxContextDeleter>;

struct UcxWorkerDeleter {
  void operator()(ucp_worker_h worker) const { ucp_worker_destroy(worker); }
};
using UcxWorker =
    std::unique_ptr<std::remove_pointer_t<ucp_worker_h>, UcxWorkerDeleter>;

struct UcxListenerDeleter {
  void operator()(ucp_listener_h listener) const {
    ucp_listener_destroy(listener);
  }
};
using UcxListener =
    std::unique_ptr<std::remove_pointer_t<ucp_listener_h>, UcxListenerDeleter>;

// Memory that UCX has registered with its devices. Its context outlives it.
struct UcxMappedDeleter {
  ucp_context_h context = nullptr;
  void operator()(ucp_mem_h mapped) const { ucp_mem_unmap(context, mapped); }
};
using UcxMapped =
    std::unique_ptr<std::remove_pointer_t<ucp_mem_h>, UcxMappedDeleter>;

// OK, or the nearest code with "`what`: UCX's words".
absl::Status UcxStatus(ucs_status_t status, absl::string_view what);

}  // namespace baton::kv_transfer
