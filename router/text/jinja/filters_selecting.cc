// Filters that apply others to each item: map, select, reject and their kin.
// What is false, such as the tools of a call without any, has no items for them,
// though it has none for a loop either, which fails.

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "router/text/jinja/compare.h"
#include "router/text/jinja/filters.h"
#include "router/text/jinja/operators.h"
#include "router/text/jinja/predicates.h"
#include "router/text/jinja/python_text.h"

namespace baton::router::jinja {
namespace {

// Takes the argument at `place` out, or fails.
absl::StatusOr<Value> Take(CallArgs& args, size_t place,
                           absl::string_view missing) {
  if (args.positional.size() <= place) return Error(missing);
  Value value = std::move(args.positional[place]);
  args.positional.erase(args.positional.begin() +
                        static_cast<ptrdiff_t>(place));
  return value;
}

absl::StatusOr<std::string> TakeName(CallArgs& args, size_t place,
                                     absl::string_view missing) {
  BATON_ASSIGN_OR_RETURN(const Value value, Take(args, place, missing));
  if (!value.is_string()) {
    return Error(absl::StrCat("the name of a filter or test is no str but '",
                              value.type_name(), "'"));
  }
  return value.text();
}

// The arguments behind `item` for one more call.
CallArgs With(const Value& item, const CallArgs& rest) {
  CallArgs args;
  args.positional.reserve(1 + rest.positional.size());
  args.positional.push_back(item);
  args.positional.insert(args.positional.end(), rest.positional.begin(),
                         rest.positional.end());
  args.named = rest.named;
  return args;
}

absl::StatusOr<Values> MapAttribute(Run& run, const Values& items,
                                    const CallArgs& args) {
  const Value* attribute = nullptr;
  const Value* fallback = nullptr;
  for (const auto& [name, value] : args.named) {
    if (name == "attribute") {
      attribute = &value;
    } else if (name == "default") {
      fallback = &value;
    } else {
      return Error(
          absl::StrCat("Unexpected keyword argument '", ShortText(name), "'"));
    }
  }
  if (attribute == nullptr) return Error("map requires a filter argument");
  Values out;
  for (const Value& item : items) {
    BATON_ASSIGN_OR_RETURN(Value value, AttributeOf(run, item, *attribute));
    if (value.is_undefined() && fallback != nullptr && !fallback->is_none()) {
      value = *fallback;
    }
    out.push_back(std::move(value));
  }
  return out;
}

absl::StatusOr<Value> Map(Run& run, CallArgs& args) {
  BATON_ASSIGN_OR_RETURN(const Value value, Take(args, 0, "map takes a value"));
  if (!Truth(value)) return run.Generator({});
  BATON_ASSIGN_OR_RETURN(const Values items, Items(run, value));
  Values out;
  if (args.positional.empty()) {
    BATON_ASSIGN_OR_RETURN(out, MapAttribute(run, items, args));
    return run.Generator(std::move(out));
  }
  BATON_ASSIGN_OR_RETURN(const std::string name,
                         TakeName(args, 0, "map requires a filter argument"));
  // A filter may itself map.
  const Level level(run);
  BATON_RETURN_IF_ERROR(level.status());
  for (const Value& item : items) {
    BATON_ASSIGN_OR_RETURN(Value each,
                           ApplyFilter(run, name, With(item, args)));
    out.push_back(std::move(each));
  }
  return run.Generator(std::move(out));
}

// The items, or those whose attribute, pass a test, or do not.
absl::StatusOr<Value> Selected(Run& run, CallArgs& args, bool by_attribute,
                               bool wanted) {
  BATON_ASSIGN_OR_RETURN(const Value value,
                         Take(args, 0, "select takes a value"));
  if (!Truth(value)) return run.Generator({});
  BATON_ASSIGN_OR_RETURN(const Values items, Items(run, value));
  Value attribute;
  if (by_attribute) {
    BATON_ASSIGN_OR_RETURN(
        attribute, Take(args, 0, "Missing parameter for attribute name"));
  }
  std::string test;
  if (!args.positional.empty()) {
    BATON_ASSIGN_OR_RETURN(test, TakeName(args, 0, ""));
  }
  Values out;
  for (const Value& item : items) {
    BATON_RETURN_IF_ERROR(run.Spend(1));
    Value subject = item;
    if (by_attribute) {
      BATON_ASSIGN_OR_RETURN(subject, AttributeOf(run, item, attribute));
    }
    bool passes = Truth(subject);
    if (!test.empty()) {
      BATON_ASSIGN_OR_RETURN(passes, ApplyTest(run, test, With(subject, args)));
    }
    if (passes == wanted) out.push_back(item);
  }
  return run.Generator(std::move(out));
}

absl::StatusOr<Value> Select(Run& run, CallArgs& args) {
  return Selected(run, args, /*by_attribute=*/false, /*wanted=*/true);
}
absl::StatusOr<Value> Reject(Run& run, CallArgs& args) {
  return Selected(run, args, /*by_attribute=*/false, /*wanted=*/false);
}
absl::StatusOr<Value> SelectAttr(Run& run, CallArgs& args) {
  return Selected(run, args, /*by_attribute=*/true, /*wanted=*/true);
}
absl::StatusOr<Value> RejectAttr(Run& run, CallArgs& args) {
  return Selected(run, args, /*by_attribute=*/true, /*wanted=*/false);
}

}  // namespace

void AddSelectingFilters(Filters* filters) {
  for (const auto& [name, filter] :
       {std::make_pair("map", &Map), std::make_pair("select", &Select),
        std::make_pair("reject", &Reject),
        std::make_pair("selectattr", &SelectAttr),
        std::make_pair("rejectattr", &RejectAttr)}) {
    filters->emplace(name, filter);
  }
}

}  // namespace baton::router::jinja
