#include "tests/support/cuda_memory.h"

#include <dlfcn.h>
#include <xxhash.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "kv_transfer/link_probe.h"
#include "kv_transfer/transports/host_aware/create_transport.h"

namespace baton::kv_transfer {
namespace {

// Of CUDA's driver API: functions whose names and arguments do not change.
// Addresses of a device are 64-bit integers there, results 0 where all is well.
struct Driver {
  int (*init)(unsigned) = nullptr;
  int (*device_get)(int*, int) = nullptr;
  int (*primary_context)(void**, int) = nullptr;
  int (*set_context)(void*) = nullptr;
  int (*allocate)(uint64_t*, size_t) = nullptr;
  int (*free)(uint64_t) = nullptr;
  int (*to_device)(uint64_t, const void*, size_t) = nullptr;
  int (*to_host)(void*, uint64_t, size_t) = nullptr;
  void* context = nullptr;
};

template <typename Function>
bool Find(void* library, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(dlsym(library, name));
  return *function != nullptr;
}

absl::StatusOr<Driver> Load() {
  void* const library = dlopen("libcuda.so.1", RTLD_NOW);
  if (library == nullptr) return absl::NotFoundError("no driver of CUDA");
  Driver driver;
  if (!Find(library, "cuInit", &driver.init) ||
      !Find(library, "cuDeviceGet", &driver.device_get) ||
      !Find(library, "cuDevicePrimaryCtxRetain", &driver.primary_context) ||
      !Find(library, "cuCtxSetCurrent", &driver.set_context) ||
      !Find(library, "cuMemAlloc_v2", &driver.allocate) ||
      !Find(library, "cuMemFree_v2", &driver.free) ||
      !Find(library, "cuMemcpyHtoD_v2", &driver.to_device) ||
      !Find(library, "cuMemcpyDtoH_v2", &driver.to_host)) {
    return absl::NotFoundError("a driver of CUDA that lacks functions");
  }
  int device = 0;
  if (driver.init(0) != 0 || driver.device_get(&device, 0) != 0 ||
      driver.primary_context(&driver.context, device) != 0) {
    return absl::NotFoundError("no device of CUDA");
  }
  return driver;
}

const absl::StatusOr<Driver>& TheDriver() {
  static const auto* const driver = new absl::StatusOr<Driver>(Load());
  return *driver;
}

const Driver& Ready() {
  const Driver& driver = TheDriver().value();
  CHECK_EQ(driver.set_context(driver.context), 0);
  return driver;
}

class CudaMirror final : public KvMemory::Mirror, public PageHasher {
 public:
  explicit CudaMirror(absl::Span<std::byte> behind) : behind_(behind) {
    CHECK_EQ(Ready().allocate(&device_, bytes()), 0);
    Push(behind);
  }
  ~CudaMirror() override { CHECK_EQ(Ready().free(device_), 0); }

  KvGeometry Place(KvGeometry kv) override {
    auto* const device = reinterpret_cast<std::byte*>(device_);
    kv.memory = {device, behind_.size()};
    kv.descriptor = kNoDescriptor;
    kv.hasher = this;
    kv.spare = {device + behind_.size(), LinkProbe::kMaxPayloadBytes};
    return kv;
  }
  void Push(absl::Span<const std::byte> part) override {
    CHECK_EQ(Ready().to_device(device_ + (part.data() - behind_.data()),
                               part.data(), part.size()),
             0);
  }
  void Pull() override {
    CHECK_EQ(Ready().to_host(behind_.data(), device_, behind_.size()), 0);
  }

  std::vector<uint64_t> HashPages(absl::Span<const ByteSpan> runs,
                                  int64_t page_bytes,
                                  uint64_t first_seed) override {
    std::vector<std::byte> pages;
    for (const ByteSpan run : runs) {
      pages.resize(pages.size() + run.size());
      CHECK_EQ(
          Ready().to_host(&*pages.end() - run.size(),
                          reinterpret_cast<uint64_t>(run.data()), run.size()),
          0);
    }
    std::vector<uint64_t> hashes;
    for (size_t at = 0; at < pages.size(); at += page_bytes) {
      hashes.push_back(XXH3_64bits_withSeed(pages.data() + at, page_bytes,
                                            first_seed + hashes.size()));
    }
    return hashes;
  }

 private:
  size_t bytes() const { return behind_.size() + LinkProbe::kMaxPayloadBytes; }

  const absl::Span<std::byte> behind_;
  uint64_t device_ = 0;
};

}  // namespace

absl::Status CheckCudaMemory() {
  if (!TheDriver().ok()) return TheDriver().status();
  return CheckUcx(UcxOptions().tls, UcxMemory::kCuda);
}

absl::StatusOr<std::unique_ptr<Transport>> CreateTransportOf(
    const std::string& kind, UcxOptions options) {
  if (kind != kUcxCuda) return CreateTransport(kind, options);
  options.memory = UcxMemory::kCuda;
  options.select_device = [] { Ready(); };
  return CreateTransport("ucx", options);
}

KvMemory::MakeMirror MirrorOf(const std::string& kind) {
  if (kind != kUcxCuda) return nullptr;
  return [](absl::Span<std::byte> behind) -> std::unique_ptr<KvMemory::Mirror> {
    return std::make_unique<CudaMirror>(behind);
  };
}

}  // namespace baton::kv_transfer
