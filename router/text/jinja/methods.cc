#include "router/text/jinja/methods.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "router/text/jinja/arguments.h"
#include "router/text/jinja/compare.h"
#include "router/text/jinja/value_text.h"

namespace baton::router::jinja {
namespace {

using Methods = absl::flat_hash_map<absl::string_view, Method>;

absl::StatusOr<Value> DictGet(Run& run, const Value& self, CallArgs& args) {
  BATON_ASSIGN_OR_RETURN(const Bound bound,
                         Bound::Bind("get", args, {"key", "default"}, 1));
  const Value& key = *bound.Get(0);
  if (!HashOf(key).has_value()) {
    return Error(absl::StrCat("unhashable type: '", key.type_name(), "'"));
  }
  BATON_RETURN_IF_ERROR(run.SpendText(key.is_string() ? key.text().size() : 0));
  if (const Value* const found = self.dict().Find(key)) return *found;
  return bound.Get(1) == nullptr ? Value::None() : *bound.Get(1);
}

absl::Status NoArguments(absl::string_view name, const CallArgs& args) {
  if (args.positional.empty() && args.named.empty()) return absl::OkStatus();
  return Error(absl::StrCat(name, "() takes no arguments"));
}

absl::StatusOr<Value> DictKeys(Run& run, const Value& self, CallArgs& args) {
  BATON_RETURN_IF_ERROR(NoArguments("keys", args));
  const auto& entries = self.dict().entries;
  BATON_RETURN_IF_ERROR(run.CheckRoom(entries.size(), sizeof(Value)));
  Values keys;
  for (const DictRep::Entry& entry : entries) keys.push_back(entry.first);
  return run.Sequence(SequenceType::kKeys, std::move(keys));
}

absl::StatusOr<Value> DictValues(Run& run, const Value& self, CallArgs& args) {
  BATON_RETURN_IF_ERROR(NoArguments("values", args));
  const auto& entries = self.dict().entries;
  BATON_RETURN_IF_ERROR(run.CheckRoom(entries.size(), sizeof(Value)));
  Values values;
  for (const DictRep::Entry& entry : entries) values.push_back(entry.second);
  return run.Sequence(SequenceType::kValues, std::move(values));
}

absl::StatusOr<Value> DictItems(Run& run, const Value& self, CallArgs& args) {
  BATON_RETURN_IF_ERROR(NoArguments("items", args));
  Values pairs;
  for (const auto& [key, value] : self.dict().entries) {
    BATON_ASSIGN_OR_RETURN(Value pair, run.Tuple({key, value}));
    pairs.push_back(std::move(pair));
  }
  return run.Sequence(SequenceType::kItems, std::move(pairs));
}

absl::StatusOr<Value> Copy(Run& run, const Value& self, CallArgs& args) {
  BATON_RETURN_IF_ERROR(NoArguments("copy", args));
  return self;
}

absl::StatusOr<Value> ListCount(Run& run, const Value& self, CallArgs& args) {
  BATON_ASSIGN_OR_RETURN(const Bound bound,
                         Bound::Bind("count", args, {"value"}, 1));
  int64_t count = 0;
  for (const Value& item : self.sequence().items) {
    BATON_ASSIGN_OR_RETURN(const bool equal, Equals(run, item, *bound.Get(0)));
    count += equal ? 1 : 0;
  }
  return Value::Int(count);
}

absl::StatusOr<Value> ListIndex(Run& run, const Value& self, CallArgs& args) {
  BATON_ASSIGN_OR_RETURN(
      const Bound bound,
      Bound::Bind("index", args, {"value", "start", "stop"}, 1));
  const Values& items = self.sequence().items;
  const auto size = static_cast<int64_t>(items.size());
  BATON_ASSIGN_OR_RETURN(int64_t start, bound.Int(1, 0));
  BATON_ASSIGN_OR_RETURN(int64_t stop, bound.Int(2, size));
  if (start < 0) start = std::max<int64_t>(0, start + size);
  if (stop < 0) stop += size;
  for (int64_t i = start; i < std::min(stop, size); ++i) {
    BATON_ASSIGN_OR_RETURN(
        const bool equal,
        Equals(run, items[static_cast<size_t>(i)], *bound.Get(0)));
    if (equal) return Value::Int(i);
  }
  BATON_ASSIGN_OR_RETURN(const std::string shown, Repr(run, *bound.Get(0)));
  return Error(absl::StrCat(shown.substr(0, 60), " is not in list"));
}

const Methods& DictMethods() {
  static const auto* methods = new Methods{
      {"get", DictGet},       {"items", DictItems}, {"keys", DictKeys},
      {"values", DictValues}, {"copy", Copy},
  };
  return *methods;
}

const Methods& ListMethods() {
  static const auto* methods =
      new Methods{{"count", ListCount}, {"index", ListIndex}, {"copy", Copy}};
  return *methods;
}

Method FindMethod(const Value& object, absl::string_view name) {
  if (object.is_string()) return FindStringMethod(name);
  if (object.is_dict()) {
    const auto it = DictMethods().find(name);
    return it == DictMethods().end() ? nullptr : it->second;
  }
  if (!object.is_indexable_sequence()) return nullptr;
  if (name == "copy" && !object.is_sequence_of(SequenceType::kList)) {
    return nullptr;
  }
  const auto it = ListMethods().find(name);
  return it == ListMethods().end() ? nullptr : it->second;
}

}  // namespace

bool HasMethod(const Value& object, absl::string_view name) {
  return FindMethod(object, name) != nullptr;
}

bool IsForbiddenMethod(const Value& object, absl::string_view name) {
  static const auto* of_lists = new absl::flat_hash_set<absl::string_view>{
      "append", "clear",  "extend",  "insert",
      "pop",    "remove", "reverse", "sort"};
  static const auto* of_dicts = new absl::flat_hash_set<absl::string_view>{
      "clear", "pop", "popitem", "setdefault", "update"};
  if (object.is_dict()) return of_dicts->contains(name);
  return object.is_sequence_of(SequenceType::kList) && of_lists->contains(name);
}

absl::StatusOr<Value> CallBuiltinMethod(Run& run, const Value& self,
                                        absl::string_view name,
                                        CallArgs& args) {
  BATON_RETURN_IF_ERROR(run.Spend(1));
  return FindMethod(self, name)(run, self, args);
}

}  // namespace baton::router::jinja
