#include "router/text/jinja/predicates.h"

#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "router/text/jinja/compare.h"
#include "router/text/jinja/filters.h"
#include "router/text/jinja/operators.h"
#include "router/text/jinja/python_text.h"
#include "router/text/jinja/value_text.h"

namespace baton::router::jinja {
namespace {

using Args = const Values&;
using Predicate = absl::StatusOr<bool> (*)(Run& run, Args args);

struct Entry {
  // Besides the value itself.
  size_t arguments;
  Predicate predicate;
};

absl::StatusOr<bool> IsIterable(Run& run, Args args) {
  switch (args[0].kind()) {
    case Kind::kUndefined:
    case Kind::kString:
    case Kind::kSequence:
    case Kind::kDict:
      return true;
    case Kind::kNone:
    case Kind::kBool:
    case Kind::kInt:
    case Kind::kFloat:
    case Kind::kObject:
      return false;
  }
  return false;
}

// What has a length and items.
absl::StatusOr<bool> IsSequence(Run& run, Args args) {
  const Value& value = args[0];
  return value.is_undefined() || value.is_string() || value.is_dict() ||
         value.is_indexable_sequence();
}

absl::StatusOr<bool> IsMultiple(Run& run, Args args) {
  BATON_ASSIGN_OR_RETURN(const Value rest,
                         ApplyBinary(run, BinaryOp::kModulo, args[0], args[1]));
  return Equal(rest, Value::Int(0));
}

template <int kRest>
absl::StatusOr<bool> HasParity(Run& run, Args args) {
  BATON_ASSIGN_OR_RETURN(const Value rest, ApplyBinary(run, BinaryOp::kModulo,
                                                       args[0], Value::Int(2)));
  return Equal(rest, Value::Int(kRest));
}

template <bool (*kTest)(absl::string_view)>
absl::StatusOr<bool> HasCase(Run& run, Args args) {
  BATON_ASSIGN_OR_RETURN(const std::string text, Str(run, args[0]));
  BATON_RETURN_IF_ERROR(run.SpendText(8 * text.size()));
  return kTest(text);
}

template <Order kOrder>
absl::StatusOr<bool> HasOrder(Run& run, Args args) {
  return IsOrdered(run, kOrder, args[0], args[1]);
}

template <Kind kKind>
absl::StatusOr<bool> IsOfKind(Run& run, Args args) {
  return args[0].is(kKind);
}

template <bool kValue>
absl::StatusOr<bool> IsBool(Run& run, Args args) {
  return args[0].is_bool() && args[0].as_bool() == kValue;
}

absl::StatusOr<bool> IsEqual(Run& run, Args args) {
  return Equals(run, args[0], args[1]);
}

absl::StatusOr<bool> IsUnequal(Run& run, Args args) {
  BATON_ASSIGN_OR_RETURN(const bool equal, Equals(run, args[0], args[1]));
  return !equal;
}

absl::StatusOr<bool> IsSame(Run& run, Args args) {
  BATON_RETURN_IF_ERROR(
      run.SpendText(args[0].is_string() ? args[0].text().size() : 0));
  return args[0].IsSame(args[1]);
}

const absl::flat_hash_map<absl::string_view, Entry>& Predicates() {
  static const auto* predicates = [] {
    auto* table = new absl::flat_hash_map<absl::string_view, Entry>{
        {"defined",
         {0,
          [](Run&, Args args) -> absl::StatusOr<bool> {
            return !args[0].is_undefined();
          }}},
        {"undefined", {0, IsOfKind<Kind::kUndefined>}},
        {"none", {0, IsOfKind<Kind::kNone>}},
        {"boolean", {0, IsOfKind<Kind::kBool>}},
        {"true", {0, IsBool<true>}},
        {"false", {0, IsBool<false>}},
        {"integer", {0, IsOfKind<Kind::kInt>}},
        {"float", {0, IsOfKind<Kind::kFloat>}},
        {"number",
         {0,
          [](Run&, Args args) -> absl::StatusOr<bool> {
            return args[0].is_number();
          }}},
        {"string", {0, IsOfKind<Kind::kString>}},
        {"mapping", {0, IsOfKind<Kind::kDict>}},
        {"sequence", {0, IsSequence}},
        {"iterable", {0, IsIterable}},
        {"callable",
         {0,
          [](Run&, Args args) -> absl::StatusOr<bool> {
            // Python's undefined has what a call needs: to fail.
            return args[0].is_undefined() ||
                   (args[0].is_object() && args[0].object()->callable());
          }}},
        {"escaped",
         {0,
          [](Run&, Args args) -> absl::StatusOr<bool> {
            return args[0].is_safe();
          }}},
        {"lower", {0, HasCase<IsLower>}},
        {"upper", {0, HasCase<IsUpper>}},
        {"odd", {0, HasParity<1>}},
        {"even", {0, HasParity<0>}},
        {"divisibleby", {1, IsMultiple}},
        {"sameas", {1, IsSame}},
        {"in",
         {1,
          [](Run& run, Args args) { return Contains(run, args[1], args[0]); }}},
        {"filter",
         {0,
          [](Run&, Args args) -> absl::StatusOr<bool> {
            return args[0].is_string() && IsFilter(args[0].text());
          }}},
        {"test",
         {0,
          [](Run&, Args args) -> absl::StatusOr<bool> {
            return args[0].is_string() && IsTest(args[0].text());
          }}},
    };
    for (const char* name : {"eq", "equalto", "=="}) {
      (*table)[name] = {1, IsEqual};
    }
    for (const char* name : {"ne", "!="}) (*table)[name] = {1, IsUnequal};
    for (const char* name : {"lt", "lessthan", "<"}) {
      (*table)[name] = {1, HasOrder<Order::kLess>};
    }
    for (const char* name : {"le", "<="}) {
      (*table)[name] = {1, HasOrder<Order::kLessOrEqual>};
    }
    for (const char* name : {"gt", "greaterthan", ">"}) {
      (*table)[name] = {1, HasOrder<Order::kGreater>};
    }
    for (const char* name : {"ge", ">="}) {
      (*table)[name] = {1, HasOrder<Order::kGreaterOrEqual>};
    }
    return table;
  }();
  return *predicates;
}

}  // namespace

bool IsTest(absl::string_view name) { return Predicates().contains(name); }

absl::StatusOr<bool> ApplyTest(Run& run, absl::string_view name,
                               CallArgs args) {
  const auto it = Predicates().find(name);
  if (it == Predicates().end()) {
    return Error(absl::StrCat("No test named '", ShortText(name), "'."));
  }
  // No template names these arguments; their names are not worth a table.
  for (auto& [unused, value] : args.named) {
    args.positional.push_back(std::move(value));
  }
  const size_t given = args.positional.size() - 1;
  if (given != it->second.arguments) {
    return Error(absl::StrCat("the test '", name, "' takes ",
                              it->second.arguments, " argument(s), not ",
                              given));
  }
  return it->second.predicate(run, args.positional);
}

}  // namespace baton::router::jinja
