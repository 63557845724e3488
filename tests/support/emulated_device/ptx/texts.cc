// Where kernels are in a text.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "common/log.h"
#include "tests/support/emulated_device/ptx/program.h"

namespace baton::engine::cuda::emulated::ptx {
namespace {

using absl::string_view;

// Behind the brace that closes what begins there.
size_t EndOfBody(string_view text, size_t begin) {
  int depth = 0;
  for (size_t at = begin;;) {
    const size_t end = text.find('\n', at);
    CHECK(end != string_view::npos) << "the text of a kernel has no end";
    const string_view line =
        absl::StripAsciiWhitespace(text.substr(at, end - at));
    at = end + 1;
    if (line == "{") ++depth;
    if (line == "}" && --depth == 0) return end;
  }
}

}  // namespace

std::vector<KernelText> FindKernels(absl::string_view text) {
  std::vector<KernelText> kernels;
  constexpr string_view kEntry = ".entry ";
  constexpr string_view kTarget = "\n.target ";
  size_t at = 0;
  size_t counted = 0;
  // The last one before what is looked at, and the one behind.
  size_t target = string_view::npos;
  size_t next_target = text.find(kTarget);
  int line = 1;
  for (;;) {
    const size_t begin = text.find(kEntry, at);
    if (begin == string_view::npos) return kernels;
    const size_t name = begin + kEntry.size();
    const size_t end = EndOfBody(text, begin);
    line += static_cast<int>(
        std::count(text.begin() + counted, text.begin() + begin, '\n'));
    counted = begin;
    at = end;
    while (next_target < begin) {
      target = next_target;
      next_target = text.find(kTarget, target + 1);
    }
    CHECK(target != string_view::npos);
    if (!absl::StartsWith(text.substr(target + kTarget.size()), "sm_90a")) {
      continue;
    }
    KernelText kernel;
    kernel.name = std::string(text.substr(name, text.find('(', name) - name));
    kernel.text = text.substr(begin, end + 1 - begin);
    kernel.line = line;
    kernels.push_back(std::move(kernel));
  }
}

}  // namespace baton::engine::cuda::emulated::ptx
