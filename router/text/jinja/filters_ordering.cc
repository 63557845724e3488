// Filters that compare items: sort, unique, min, max, groupby, dictsort.

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/status_macros.h"
#include "router/text/jinja/arguments.h"
#include "router/text/jinja/compare.h"
#include "router/text/jinja/filters.h"
#include "router/text/jinja/operators.h"
#include "router/text/jinja/python_text.h"

namespace baton::router::jinja {
namespace {

// An item and what it is compared by.
using Keyed = std::pair<Value, Value>;

// Sorts by key, as Python's sorted: equal ones keep their order, also in
// reverse.
absl::Status SortByKey(Run& run, bool reverse, std::vector<Keyed>* items) {
  absl::Status status;
  const auto less = [&](const Keyed& a, const Keyed& b) {
    if (!status.ok()) return false;
    const absl::StatusOr<bool> result =
        reverse ? Less(run, b.second, a.second) : Less(run, a.second, b.second);
    if (!result.ok()) status = result.status();
    return result.ok() && *result;
  };
  std::stable_sort(items->begin(), items->end(), less);
  return status;
}

// What `attribute` says to compare by: the item itself, an attribute or, with
// commas, several.
absl::StatusOr<Value> KeyOf(Run& run, const Value& item, const Value* attribute,
                            bool case_sensitive, bool several) {
  if (attribute == nullptr) {
    BATON_ASSIGN_OR_RETURN(Value key, case_sensitive
                                          ? absl::StatusOr<Value>(item)
                                          : IgnoringCase(run, item));
    // As Jinja has it: in a list, equal items need no order.
    if (several) return run.List({std::move(key)});
    return key;
  }
  if (!several || !attribute->is_string()) {
    BATON_ASSIGN_OR_RETURN(Value key, AttributeOf(run, item, *attribute));
    if (case_sensitive) return key;
    return IgnoringCase(run, key);
  }
  Values keys;
  for (const absl::string_view part : absl::StrSplit(attribute->text(), ',')) {
    BATON_ASSIGN_OR_RETURN(
        Value key, AttributeOf(run, item, Value::Constant(std::string(part))));
    if (!case_sensitive) {
      BATON_ASSIGN_OR_RETURN(key, IgnoringCase(run, key));
    }
    keys.push_back(std::move(key));
  }
  return run.List(std::move(keys));
}

absl::StatusOr<std::vector<Keyed>> WithKeys(Run& run, const Value& value,
                                            const Value* attribute,
                                            bool case_sensitive, bool several) {
  BATON_ASSIGN_OR_RETURN(Values items, Items(run, value));
  BATON_RETURN_IF_ERROR(run.CheckRoom(items.size(), 3 * sizeof(Value)));
  std::vector<Keyed> keyed;
  keyed.reserve(items.size());
  for (Value& item : items) {
    BATON_ASSIGN_OR_RETURN(
        Value key, KeyOf(run, item, attribute, case_sensitive, several));
    keyed.emplace_back(std::move(item), std::move(key));
  }
  return keyed;
}

absl::StatusOr<Value> Sort(Run& run, CallArgs& args) {
  BATON_ASSIGN_OR_RETURN(
      const Bound bound,
      Bound::Bind("sort", args,
                  {"value", "reverse", "case_sensitive", "attribute"}, 1));
  BATON_ASSIGN_OR_RETURN(std::vector<Keyed> keyed,
                         WithKeys(run, *bound.Get(0), bound.GetUnlessNone(3),
                                  bound.Truth(2, false), /*several=*/true));
  BATON_RETURN_IF_ERROR(SortByKey(run, bound.Truth(1, false), &keyed));
  Values out;
  for (Keyed& each : keyed) out.push_back(std::move(each.first));
  return run.List(std::move(out));
}

absl::StatusOr<Value> Unique(Run& run, CallArgs& args) {
  BATON_ASSIGN_OR_RETURN(
      const Bound bound,
      Bound::Bind("unique", args, {"value", "case_sensitive", "attribute"}, 1));
  BATON_ASSIGN_OR_RETURN(std::vector<Keyed> keyed,
                         WithKeys(run, *bound.Get(0), bound.GetUnlessNone(2),
                                  bound.Truth(1, false), /*several=*/false));
  absl::flat_hash_map<uint64_t, Values> seen;
  Values out;
  for (auto& [item, key] : keyed) {
    const std::optional<uint64_t> hash = HashOf(key);
    if (!hash.has_value()) {
      return Error(absl::StrCat("unhashable type: '", key.type_name(), "'"));
    }
    Values& same_hash = seen[*hash];
    bool is_new = true;
    for (const Value& other : same_hash) {
      BATON_ASSIGN_OR_RETURN(const bool equal, Equals(run, other, key));
      is_new = is_new && !equal;
    }
    if (!is_new) continue;
    same_hash.push_back(key);
    out.push_back(item);
  }
  return run.Generator(std::move(out));
}

absl::StatusOr<Value> Extreme(Run& run, CallArgs& args, bool largest) {
  BATON_ASSIGN_OR_RETURN(
      const Bound bound,
      Bound::Bind(largest ? "max" : "min", args,
                  {"value", "case_sensitive", "attribute"}, 1));
  BATON_ASSIGN_OR_RETURN(std::vector<Keyed> keyed,
                         WithKeys(run, *bound.Get(0), bound.GetUnlessNone(2),
                                  bound.Truth(1, false), /*several=*/false));
  if (keyed.empty()) {
    return Value::Undefined("No aggregated item, sequence was empty.");
  }
  size_t best = 0;
  for (size_t i = 1; i < keyed.size(); ++i) {
    BATON_ASSIGN_OR_RETURN(
        const bool better,
        IsOrdered(run, largest ? Order::kGreater : Order::kLess,
                  keyed[i].second, keyed[best].second));
    if (better) best = i;
  }
  return keyed[best].first;
}

absl::StatusOr<Value> Min(Run& run, CallArgs& args) {
  return Extreme(run, args, /*largest=*/false);
}
absl::StatusOr<Value> Max(Run& run, CallArgs& args) {
  return Extreme(run, args, /*largest=*/true);
}

absl::StatusOr<Value> GroupBy(Run& run, CallArgs& args) {
  BATON_ASSIGN_OR_RETURN(
      const Bound bound,
      Bound::Bind("groupby", args,
                  {"value", "attribute", "default", "case_sensitive"}, 2));
  const bool case_sensitive = bound.Truth(3, false);
  const Value* const fallback = bound.GetUnlessNone(2);
  BATON_ASSIGN_OR_RETURN(
      std::vector<Keyed> keyed,
      WithKeys(run, *bound.Get(0), bound.Get(1), /*case_sensitive=*/true,
               /*several=*/false));
  for (auto& [item, key] : keyed) {
    if (key.is_undefined() && fallback != nullptr) key = *fallback;
    if (case_sensitive) continue;
    BATON_ASSIGN_OR_RETURN(key, IgnoringCase(run, key));
  }
  BATON_RETURN_IF_ERROR(SortByKey(run, /*reverse=*/false, &keyed));
  Values groups;
  for (size_t at = 0; at < keyed.size();) {
    Values members;
    size_t end = at;
    for (; end < keyed.size(); ++end) {
      BATON_ASSIGN_OR_RETURN(const bool equal,
                             Equals(run, keyed[at].second, keyed[end].second));
      if (!equal) break;
      members.push_back(keyed[end].first);
    }
    // A group is called as its first member spells it.
    BATON_ASSIGN_OR_RETURN(Value name,
                           AttributeOf(run, keyed[at].first, *bound.Get(1)));
    if (name.is_undefined() && fallback != nullptr) name = *fallback;
    BATON_ASSIGN_OR_RETURN(Value list, run.List(std::move(members)));
    BATON_ASSIGN_OR_RETURN(
        Value group,
        run.Sequence(SequenceType::kGroup, {std::move(name), std::move(list)}));
    groups.push_back(std::move(group));
    at = end;
  }
  return run.List(std::move(groups));
}

absl::StatusOr<Value> DictSort(Run& run, CallArgs& args) {
  BATON_ASSIGN_OR_RETURN(
      const Bound bound,
      Bound::Bind("dictsort", args,
                  {"value", "case_sensitive", "by", "reverse"}, 1));
  BATON_ASSIGN_OR_RETURN(const std::string by, bound.Text(2, "key"));
  if (by != "key" && by != "value") {
    return Error("You can only sort by either \"key\" or \"value\"");
  }
  const Value& value = *bound.Get(0);
  if (value.is_undefined()) return value.UndefinedError();
  if (!value.is_dict()) {
    return Error(absl::StrCat("'", value.type_name(),
                              "' object has no attribute 'items'"));
  }
  std::vector<Keyed> keyed;
  for (const auto& [key, item] : value.dict().entries) {
    BATON_ASSIGN_OR_RETURN(Value pair, run.Tuple({key, item}));
    BATON_ASSIGN_OR_RETURN(
        Value sort_key,
        KeyOf(run, by == "key" ? key : item, /*attribute=*/nullptr,
              bound.Truth(1, false), /*several=*/false));
    keyed.emplace_back(std::move(pair), std::move(sort_key));
  }
  BATON_RETURN_IF_ERROR(SortByKey(run, bound.Truth(3, false), &keyed));
  Values out;
  for (Keyed& each : keyed) out.push_back(std::move(each.first));
  return run.List(std::move(out));
}

}  // namespace

void AddOrderingFilters(Filters* filters) {
  for (const auto& [name, filter] :
       {std::make_pair("sort", &Sort), std::make_pair("unique", &Unique),
        std::make_pair("min", &Min), std::make_pair("max", &Max),
        std::make_pair("groupby", &GroupBy),
        std::make_pair("dictsort", &DictSort)}) {
    filters->emplace(name, filter);
  }
}

}  // namespace baton::router::jinja
