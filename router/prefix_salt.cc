#include "router/prefix_salt.h"

#include "absl/strings/str_cat.h"
#include "common/log.h"

namespace baton::router {

std::string MakePrefixSalt(PrefixScope scope, absl::string_view tenant,
                           absl::string_view cache_salt,
                           absl::string_view adapter) {
  if (scope == PrefixScope::kShared) tenant = "";
  if (tenant.empty() && cache_salt.empty() && adapter.empty()) return "";
  CHECK_LE(tenant.size(), 254u);
  CHECK_LE(adapter.size(), 255u);
  const char length[] = {'\xff', static_cast<char>(adapter.size()),
                         static_cast<char>(tenant.size())};
  const absl::string_view lengths(length, sizeof(length));
  std::string salt;
  if (!adapter.empty()) salt = absl::StrCat(lengths.substr(0, 2), adapter);
  absl::StrAppend(&salt, lengths.substr(2), tenant, cache_salt);
  return salt;
}

}  // namespace baton::router
