// KV memory of tests on a CUDA device, where there is one and UCX reaches it:
// with CUDA's driver alone, which is looked for when the tests run. Elsewhere
// who asks is told why not.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kv_transfer/page_hasher.h"
#include "kv_transfer/transport.h"
#include "kv_transfer/transports/ucx/ucx_transport.h"
#include "tests/kv_transfer/kv_fixture.h"

namespace baton::kv_transfer {

// The kind of transport that moves it, beside those of CreateTransport.
inline constexpr char kUcxCuda[] = "ucx_cuda";

// OK, or what there is not.
absl::Status CheckCudaMemory();

// As CreateTransport, and kUcxCuda. REQUIRES: CheckCudaMemory() is OK, for
// that.
absl::StatusOr<std::unique_ptr<Transport>> CreateTransportOf(
    const std::string& kind, UcxOptions options);

// For KvMemory: of kUcxCuda, what lies on a device; null for others.
KvMemory::MakeMirror MirrorOf(const std::string& kind);

}  // namespace baton::kv_transfer
