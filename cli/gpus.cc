#include "cli/gpus.h"

#include <stdlib.h>
#include <sys/stat.h>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/log.h"

namespace baton::cli {
namespace {

std::string ThereAre(const std::vector<std::string>& gpus) {
  return gpus.size() == 1 ? "there is 1 GPU"
                          : absl::StrCat("there are ", gpus.size(), " GPUs");
}

}  // namespace

std::vector<std::string> ParseGpuList(const std::string& text) {
  std::vector<std::string> gpus;
  for (absl::string_view part : absl::StrSplit(text, ',')) {
    part = absl::StripAsciiWhitespace(part);
    if (part.empty() || part.front() == '-') break;
    gpus.emplace_back(part);
  }
  return gpus;
}

std::vector<std::string> VisibleGpus() {
  if (const char* list = getenv("CUDA_VISIBLE_DEVICES")) {
    return ParseGpuList(list);
  }
  std::vector<std::string> gpus;
  struct stat node = {};
  // NVIDIA's driver numbers them without gaps; containers may have some of them
  // only, where CUDA counts those that are there.
  constexpr int kMostNodes = 64;
  for (int i = 0; i < kMostNodes; ++i) {
    const std::string path = absl::StrCat("/dev/nvidia", i);
    if (stat(path.c_str(), &node) != 0 || !S_ISCHR(node.st_mode)) continue;
    gpus.push_back(absl::StrCat(gpus.size()));
  }
  return gpus;
}

absl::Status CheckNoneShared(const std::vector<std::string>& gpus, int workers,
                             int per_worker, const std::string& why) {
  const int wanted = workers * per_worker;
  if (wanted <= static_cast<int>(gpus.size())) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(why, ": ", workers, " workers with GPUs of their own need ",
                   wanted, ": ", ThereAre(gpus)));
}

absl::StatusOr<std::vector<std::vector<std::string>>> DealGpus(
    const std::vector<std::string>& gpus, int workers, int per_worker) {
  CHECK_GE(per_worker, 1);
  CHECK(!gpus.empty());
  const int groups = static_cast<int>(gpus.size()) / per_worker;
  if (groups == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--tensor-parallel ", per_worker, ": ", ThereAre(gpus)));
  }
  std::vector<std::vector<std::string>> dealt;
  for (int worker = 0; worker < workers; ++worker) {
    const auto first = gpus.begin() + worker % groups * per_worker;
    dealt.emplace_back(first, first + per_worker);
  }
  return dealt;
}

}  // namespace baton::cli
