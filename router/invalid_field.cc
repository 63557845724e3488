#include "router/invalid_field.h"

#include "absl/strings/cord.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/utf8.h"

namespace baton::router {
namespace {

constexpr absl::string_view kPayload = "baton.router/field";
// Both may quote what the client wrote, and go into headers and trailers.
constexpr size_t kMaxBytes = 1000;
constexpr size_t kMaxFieldBytes = 200;

}  // namespace

absl::Status InvalidField(absl::string_view field, absl::string_view problem) {
  return WithField(field, absl::InvalidArgumentError(CutUtf8(
                              absl::StrCat(field, " ", problem), kMaxBytes)));
}

absl::Status WithField(absl::string_view field, absl::Status status) {
  status.SetPayload(kPayload, absl::Cord(CutUtf8(field, kMaxFieldBytes)));
  return status;
}

std::string FieldOf(const absl::Status& status) {
  const auto payload = status.GetPayload(kPayload);
  return payload.has_value() ? std::string(*payload) : "";
}

absl::Status WithFieldAlias(const absl::Status& status,
                            absl::Span<const FieldAlias> aliases) {
  const std::string field = FieldOf(status);
  for (const FieldAlias& one : aliases) {
    if (!absl::StartsWith(field, one.field)) continue;
    const std::string named = absl::StrCat(
        one.alias,
        one.alone ? "" : absl::string_view(field).substr(one.field.size()));
    absl::string_view message = status.message();
    if (absl::StartsWith(message, field)) message.remove_prefix(field.size());
    return WithField(named,
                     absl::Status(status.code(), absl::StrCat(named, message)));
  }
  return status;
}

}  // namespace baton::router
