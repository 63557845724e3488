#include "router/invalid_field.h"

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"

namespace baton::router {
namespace {

constexpr absl::string_view kPayload = "baton.router/field";

}  // namespace

absl::Status InvalidField(absl::string_view field, absl::string_view problem) {
  return WithField(
      field, absl::InvalidArgumentError(absl::StrCat(field, " ", problem)));
}

absl::Status WithField(absl::string_view field, absl::Status status) {
  status.SetPayload(kPayload, absl::Cord(field));
  return status;
}

std::string FieldOf(const absl::Status& status) {
  const auto payload = status.GetPayload(kPayload);
  return payload.has_value() ? std::string(*payload) : "";
}

}  // namespace baton::router
