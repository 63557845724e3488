#include "tests/support/emulated_device/ptx/device.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "common/log.h"
#include "tests/support/emulated_device/ptx/cluster.h"
#include "tests/support/emulated_device/ptx/fat_binary.h"
#include "tests/support/emulated_device/ptx/program.h"
#include "tests/support/emulated_device/ptx/symbols.h"

namespace baton::engine::cuda::emulated::ptx {
namespace {

constexpr char kExecuted[] = "BATON_PTX_EXECUTED";

const char* File() {
  static const char* const file = std::getenv("BATON_PTX");
  return file;
}

// What an instruction is called that orders threads, copies or products; null
// of others.
const char* OrderName(Op op) {
  switch (op) {
    case Op::kSyncBlock:
      return "bar.sync";
    case Op::kSyncWarp:
      return "bar.warp.sync";
    case Op::kClusterArrive:
      return "barrier.cluster.arrive";
    case Op::kClusterWait:
      return "barrier.cluster.wait";
    case Op::kGroupFence:
      return "wgmma.fence";
    case Op::kGroupCommit:
      return "wgmma.commit_group";
    case Op::kGroupWait:
      return "wgmma.wait_group";
    case Op::kCopyCommit:
      return "cp.async.commit_group";
    case Op::kCopyWait:
      return "cp.async.wait_group";
    case Op::kBarrierArrive:
      return "mbarrier.arrive";
    case Op::kBarrierExpect:
      return "mbarrier.arrive.expect_tx";
    case Op::kBarrierTryWait:
      return "mbarrier.try_wait";
    case Op::kFenceProxy:
      return "fence.proxy.async";
    default:
      return nullptr;
  }
}

// All that the file holds, parsed when it is run for the first time.
class Program final {
 public:
  explicit Program(const std::string& path) {
    text_ = ReadText(path);
    for (KernelText& kernel : FindKernels(text_)) {
      std::string name = Demangled(kernel.name);
      CHECK(texts_.try_emplace(std::move(name), std::move(kernel)).second)
          << path << ": two kernels of one name";
    }
    CHECK(!texts_.empty()) << path << ": holds no kernels for sm_90a";
  }

  // Adds a line for each kernel to the file: its name, how many of its
  // instructions were executed, where code begins that was not, and where
  // threads wait for each other or for copies and products, where they did.
  void AppendExecuted(const char* path) const {
    std::map<std::string, const Kernel*> parsed;
    for (const auto& [function, kernel] : kernels_) {
      parsed[kernel->name] = kernel.get();
    }
    std::ostringstream file;
    for (const auto& [name, text] : texts_) {
      const auto place = parsed.find(text.name);
      if (place == parsed.end()) {
        file << name << "\tnot run\t\t\n";
        continue;
      }
      const Kernel& kernel = *place->second;
      const std::vector<char>& executed = kernel.executed;
      file << name << "\t" << std::count(executed.begin(), executed.end(), 1)
           << " of " << executed.size() << "\t";
      for (size_t i = 0; i < executed.size(); ++i) {
        if (executed[i] == 0 && (i == 0 || executed[i - 1] != 0)) {
          file << kernel.code[i].line << " ";
        }
      }
      file << "\t";
      for (size_t i = 0; i < executed.size(); ++i) {
        const char* const order = OrderName(kernel.code[i].op);
        if (executed[i] != 0 && order != nullptr) {
          file << kernel.code[i].line << ":" << order << " ";
        }
      }
      file << "\n";
    }
    // At once: several processes may.
    const std::string all = file.str();
    const int out = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
    CHECK(out >= 0 && write(out, all.data(), all.size()) ==
                          static_cast<ssize_t>(all.size()))
        << path << ": cannot be written";
    close(out);
  }

  const Kernel& Of(const void* function) {
    std::unique_ptr<Kernel>& kernel = kernels_[function];
    if (kernel == nullptr) {
      const std::string name = NameOf(function);
      const auto text = texts_.find(name);
      CHECK(text != texts_.end()) << File() << ": " << name << " is missing";
      kernel = std::make_unique<Kernel>(ParseKernel(text->second));
    }
    return *kernel;
  }

 private:
  std::string text_;
  std::map<std::string, KernelText> texts_;  // by demangled name
  std::map<const void*, std::unique_ptr<Kernel>> kernels_;
};

Program& TheProgram() {
  static auto* const program = [] {
    // For whoever asks what tests execute.
    if (std::getenv(kExecuted) != nullptr) {
      std::atexit([] { TheProgram().AppendExecuted(std::getenv(kExecuted)); });
    }
    return new Program(File());
  }();
  return *program;
}

}  // namespace

bool Wanted() { return File() != nullptr; }

void RunKernel(const void* function, const LaunchShape& shape,
               const Arguments& arguments) {
  static int runs = 0;
  const Kernel& kernel = TheProgram().Of(function);
  CHECK(kernel.max_threads == 0 ||
        static_cast<int>(shape.threads) <= kernel.max_threads)
      << kernel.name << ": " << shape.threads << " threads";
  CHECK_EQ(arguments.size(), kernel.params.size()) << kernel.name;
  std::vector<std::byte> params;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const Param& param = kernel.params[i];
    CHECK_EQ(static_cast<int64_t>(arguments[i].size()), param.bytes)
        << kernel.name << ": argument " << i;
    params.resize(param.offset + param.bytes);
    std::memcpy(params.data() + param.offset, arguments[i].data(), param.bytes);
  }
  const bool falling = runs++ % 2 == 1;
  static const bool races = std::getenv("BATON_PTX_RACES") != nullptr;
  Cluster cluster(kernel, shape, params, races);
  ForEachCluster(shape, falling, [&](const ClusterPlace& place) {
    cluster.Run(place, falling);
  });
}

}  // namespace baton::engine::cuda::emulated::ptx
