#include "router/text/jinja/filters.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/status_macros.h"
#include "router/text/jinja/operators.h"
#include "router/text/jinja/python_text.h"

namespace baton::router::jinja {
namespace {

const Filters& AllFilters() {
  static const auto* filters = [] {
    auto* all = new Filters;
    AddTextFilters(all);
    AddNumberFilters(all);
    AddSequenceFilters(all);
    AddSelectingFilters(all);
    AddOrderingFilters(all);
    return all;
  }();
  return *filters;
}

}  // namespace

bool IsFilter(absl::string_view name) { return AllFilters().contains(name); }

absl::StatusOr<Value> ApplyFilter(Run& run, absl::string_view name,
                                  CallArgs args) {
  const auto it = AllFilters().find(name);
  if (it == AllFilters().end()) {
    return Error(absl::StrCat("No filter named '", ShortText(name), "'."));
  }
  BATON_RETURN_IF_ERROR(run.Spend(1));
  return it->second(run, args);
}

absl::StatusOr<Value> AttributeOf(Run& run, const Value& item,
                                  const Value& attribute) {
  if (!attribute.is_string()) return GetItem(run, item, attribute);
  Value value = item;
  for (const absl::string_view part : absl::StrSplit(attribute.text(), '.')) {
    BATON_RETURN_IF_ERROR(run.SpendText(part.size()));
    const bool is_number =
        !part.empty() &&
        part.find_first_not_of("0123456789") == absl::string_view::npos;
    bool too_large = false;
    const std::optional<Integer> number =
        is_number ? ParseInteger(part, 10, &too_large) : std::nullopt;
    const Value index = number.has_value() ? Value::Int(*number)
                                           : Value::Constant(std::string(part));
    BATON_ASSIGN_OR_RETURN(value, GetItem(run, value, index));
  }
  return value;
}

absl::StatusOr<Value> IgnoringCase(Run& run, const Value& value) {
  if (!value.is_string()) return value;
  BATON_RETURN_IF_ERROR(run.SpendText(4 * value.text().size()));
  return run.String(ToLower(value.text()));
}

}  // namespace baton::router::jinja
