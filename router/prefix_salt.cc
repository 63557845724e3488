#include "router/prefix_salt.h"

#include "absl/strings/str_cat.h"
#include "common/log.h"

namespace baton::router {

std::string MakePrefixSalt(PrefixScope scope, absl::string_view tenant,
                           absl::string_view cache_salt) {
  if (scope == PrefixScope::kShared) tenant = "";
  if (tenant.empty() && cache_salt.empty()) return "";
  CHECK_LE(tenant.size(), 255u);
  const auto length = static_cast<char>(tenant.size());
  return absl::StrCat(absl::string_view(&length, 1), tenant, cache_salt);
}

}  // namespace baton::router
