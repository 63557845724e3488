// What operators may call a LoRA adapter: clients ask for it by that name in
// the place of the model's, and metrics have it as a label.
//
// Pure, any thread.
#pragma once

#include <algorithm>
#include <cstddef>

#include "absl/strings/string_view.h"

namespace baton {

inline constexpr size_t kMaxAdapterNameBytes = 128;

// 1 to 128 printable ASCII characters, no spaces.
inline bool IsAdapterName(absl::string_view name) {
  return !name.empty() && name.size() <= kMaxAdapterNameBytes &&
         std::all_of(name.begin(), name.end(),
                     [](char c) { return c > ' ' && c <= '~'; });
}

}  // namespace baton
