// operators.h: attributes, items and slices, and the calling of methods.

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "router/text/jinja/arguments.h"
#include "router/text/jinja/methods.h"
#include "router/text/jinja/objects.h"
#include "router/text/jinja/operators.h"
#include "router/text/jinja/python_text.h"
#include "router/text/jinja/value_text.h"

namespace baton::router::jinja {
namespace {

// As Jinja names an object in messages about what it does not have.
std::string DescribedObject(const Value& object) {
  if (object.is_none()) return "None";
  return absl::StrCat(object.type_name(), " object");
}

Value NoAttribute(const Value& object, absl::string_view name) {
  return Value::Undefined(absl::StrCat("'", DescribedObject(object),
                                       "' has no attribute '", ShortText(name),
                                       "'"));
}

// The method `name` of a string, list or dict, not called; undefined, with what
// the sandbox says, for one that would change it.
absl::StatusOr<Value> UncalledMethod(Run& run, const Value& object,
                                     absl::string_view name) {
  if (IsForbiddenMethod(object, name)) {
    return Value::Undefined(absl::StrCat("access to attribute '", name,
                                         "' of '", object.type_name(),
                                         "' object is unsafe."));
  }
  BATON_ASSIGN_OR_RETURN(BoundMethod* const method,
                         run.Own(std::make_unique<BoundMethod>(object, name)));
  return Value::Of(method);
}

bool HasAnyMethod(const Value& object, absl::string_view name) {
  return HasMethod(object, name) || IsForbiddenMethod(object, name);
}

// object[index] where it has such an item.
absl::StatusOr<std::optional<Value>> Find(Run& run, const Value& object,
                                          const Value& index) {
  if (object.is_dict()) {
    const size_t size = index.is_string() ? index.text().size() : 0;
    BATON_RETURN_IF_ERROR(run.SpendText(size));
    const Value* const found = object.dict().Find(index);
    if (found == nullptr) return std::optional<Value>();
    return std::optional<Value>(*found);
  }
  const bool is_sequence = object.is_indexable_sequence();
  if (!index.is_integral() || (!is_sequence && !object.is_string())) {
    return std::optional<Value>();
  }
  const int64_t length =
      is_sequence ? static_cast<int64_t>(object.sequence().items.size())
                  : object.text_length();
  Integer at = index.as_integer();
  if (at < 0) at += length;
  if (at < 0 || at >= length) return std::optional<Value>();
  if (is_sequence) {
    return std::optional<Value>(
        object.sequence().items[static_cast<size_t>(at)]);
  }
  const std::string& text = object.text();
  BATON_RETURN_IF_ERROR(run.SpendText(text.size()));
  const size_t begin = ByteOffset(text, length, static_cast<int64_t>(at));
  const size_t end = ByteOffset(absl::string_view(text).substr(begin),
                                length - static_cast<int64_t>(at), 1);
  BATON_ASSIGN_OR_RETURN(Value one,
                         run.String(text.substr(begin, end), object.is_safe()));
  return std::optional<Value>(std::move(one));
}

// What a group of `groupby` is also called by.
std::optional<Value> PartOfGroup(const Value& object, absl::string_view name) {
  if (!object.is_sequence_of(SequenceType::kGroup)) return std::nullopt;
  if (name == "grouper") return object.sequence().items[0];
  if (name == "list") return object.sequence().items[1];
  return std::nullopt;
}

}  // namespace

absl::StatusOr<Value> GetAttribute(Run& run, const Value& object,
                                   absl::string_view name) {
  if (object.is_undefined()) return object.UndefinedError();
  if (object.is_object()) return object.object()->Attribute(run, name);
  if (std::optional<Value> part = PartOfGroup(object, name)) return *part;
  // As in Jinja, `d.items` is the method even where d has such a key.
  if (HasAnyMethod(object, name)) return UncalledMethod(run, object, name);
  if (object.is_dict()) {
    const Value* const found = object.dict().Find(name);
    if (found != nullptr) return *found;
  }
  return NoAttribute(object, name);
}

absl::StatusOr<Value> GetItem(Run& run, const Value& object,
                              const Value& index) {
  if (object.is_undefined()) return object.UndefinedError();
  BATON_ASSIGN_OR_RETURN(std::optional<Value> found, Find(run, object, index));
  if (found.has_value()) return *std::move(found);
  if (!index.is_string()) {
    std::string shown = absl::StrCat("of type ", index.type_name());
    if (index.is_number()) {
      BATON_ASSIGN_OR_RETURN(shown, Str(run, index));
    }
    return Value::Undefined(
        absl::StrCat(DescribedObject(object), " has no element ", shown));
  }
  const std::string& name = index.text();
  if (object.is_object()) return object.object()->Attribute(run, name);
  if (std::optional<Value> part = PartOfGroup(object, name)) return *part;
  if (HasAnyMethod(object, name)) return UncalledMethod(run, object, name);
  return NoAttribute(object, name);
}

absl::StatusOr<Value> GetSlice(Run& run, const Value& object,
                               const Value& start, const Value& stop,
                               const Value& step) {
  if (object.is_undefined()) return object.UndefinedError();
  const bool is_sequence = object.is_indexable_sequence();
  if (object.is_dict()) return Error("unhashable type: 'slice'");
  if (!is_sequence && !object.is_string()) {
    return Error(
        absl::StrCat("'", object.type_name(), "' object is not subscriptable"));
  }
  const int64_t length =
      is_sequence ? static_cast<int64_t>(object.sequence().items.size())
                  : object.text_length();
  int64_t by = 1;
  if (!step.is_none()) {
    BATON_ASSIGN_OR_RETURN(by, AsIndex(step));
    if (by == 0) return Error("slice step cannot be zero");
  }
  // Where to begin and what to stop before, as Python's slice.indices has it.
  const int64_t lowest = by > 0 ? 0 : -1;
  const int64_t highest = by > 0 ? length : length - 1;
  int64_t from = by > 0 ? lowest : highest;
  int64_t to = by > 0 ? highest : lowest;
  for (const auto& [bound, place] :
       {std::make_pair(&start, &from), std::make_pair(&stop, &to)}) {
    if (bound->is_none()) continue;
    BATON_ASSIGN_OR_RETURN(int64_t at, AsIndex(*bound));
    if (at < 0) at += length;
    *place = std::clamp(at, lowest, highest);
  }
  const int64_t distance = by > 0 ? to - from : from - to;
  const int64_t stride = by > 0 ? by : -by;
  const int64_t count = distance <= 0 ? 0 : (distance - 1) / stride + 1;
  if (is_sequence) {
    BATON_RETURN_IF_ERROR(
        run.CheckRoom(static_cast<uint64_t>(count), sizeof(Value)));
    Values items;
    items.reserve(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) {
      items.push_back(
          object.sequence().items[static_cast<size_t>(from + i * by)]);
    }
    const SequenceType type = object.sequence().type == SequenceType::kGroup
                                  ? SequenceType::kTuple
                                  : object.sequence().type;
    return run.Sequence(type, std::move(items));
  }
  const std::string& text = object.text();
  BATON_RETURN_IF_ERROR(run.SpendText(text.size()));
  if (by == 1) {
    const size_t begin = ByteOffset(text, length, from);
    const size_t end = ByteOffset(text, length, from + count);
    return run.String(text.substr(begin, end - begin), object.is_safe());
  }
  BATON_RETURN_IF_ERROR(run.SpendText(8 * text.size()));
  const std::u32string all = Decode(text);
  std::u32string out;
  for (int64_t i = 0; i < count; ++i) {
    out.push_back(all[static_cast<size_t>(from + i * by)]);
  }
  return run.String(Encode(out), object.is_safe());
}

absl::StatusOr<Value> CallMethod(Run& run, const Value& object,
                                 absl::string_view name, CallArgs args) {
  if (object.is_undefined()) return object.UndefinedError();
  if (object.is_object()) {
    return object.object()->CallMethod(run, name, std::move(args));
  }
  if (HasMethod(object, name) && !IsForbiddenMethod(object, name)) {
    return CallBuiltinMethod(run, object, name, args);
  }
  BATON_ASSIGN_OR_RETURN(const Value callee, GetAttribute(run, object, name));
  return CallValue(run, callee, std::move(args));
}

}  // namespace baton::router::jinja
