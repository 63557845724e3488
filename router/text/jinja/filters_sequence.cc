// Filters that look at sequences or change their shape.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "router/text/jinja/arguments.h"
#include "router/text/jinja/compare.h"
#include "router/text/jinja/filters.h"
#include "router/text/jinja/operators.h"
#include "router/text/jinja/python_text.h"
#include "router/text/jinja/value_text.h"

namespace baton::router::jinja {
namespace {

absl::StatusOr<Value> LengthFilter(Run& run, CallArgs& args) {
  BATON_ASSIGN_OR_RETURN(const Bound bound,
                         Bound::Bind("length", args, {"obj"}, 1));
  BATON_ASSIGN_OR_RETURN(const int64_t length, Length(*bound.Get(0)));
  return Value::Int(length);
}

absl::StatusOr<Value> First(Run& run, CallArgs& args) {
  BATON_ASSIGN_OR_RETURN(const Bound bound,
                         Bound::Bind("first", args, {"seq"}, 1));
  const Value& value = *bound.Get(0);
  if (value.is_sequence_of(SequenceType::kGenerator)) {
    const SequenceRep& source = value.sequence();
    if (source.taken < source.items.size()) return source.items[source.taken++];
    return Value::Undefined("No first item, sequence was empty.");
  }
  if (value.is_string()) {
    BATON_ASSIGN_OR_RETURN(const int64_t length, Length(value));
    if (length > 0) return GetItem(run, value, Value::Int(0));
  } else {
    BATON_ASSIGN_OR_RETURN(const Values items, Items(run, value));
    if (!items.empty()) return items.front();
  }
  return Value::Undefined("No first item, sequence was empty.");
}

absl::StatusOr<Value> Last(Run& run, CallArgs& args) {
  BATON_ASSIGN_OR_RETURN(const Bound bound,
                         Bound::Bind("last", args, {"seq"}, 1));
  const Value& value = *bound.Get(0);
  if (value.is_sequence_of(SequenceType::kGenerator)) {
    return Error("'generator' object is not reversible");
  }
  if (value.is_string()) {
    if (value.text_length() > 0) return GetItem(run, value, Value::Int(-1));
  } else {
    BATON_ASSIGN_OR_RETURN(const Values items, Items(run, value));
    if (!items.empty()) return items.back();
  }
  return Value::Undefined("No last item, sequence was empty.");
}

absl::StatusOr<Value> Join(Run& run, CallArgs& args) {
  BATON_ASSIGN_OR_RETURN(
      const Bound bound,
      Bound::Bind("join", args, {"value", "d", "attribute"}, 1));
  std::string separator;
  if (bound.Get(1) != nullptr) {
    BATON_ASSIGN_OR_RETURN(separator, Str(run, *bound.Get(1)));
  }
  BATON_ASSIGN_OR_RETURN(const Values items, Items(run, *bound.Get(0)));
  const Value* const attribute = bound.GetUnlessNone(2);
  std::string out;
  bool first = true;
  for (const Value& item : items) {
    if (!first) {
      BATON_RETURN_IF_ERROR(run.SpendText(separator.size()));
      BATON_RETURN_IF_ERROR(run.CheckLength(out.size() + separator.size()));
      out += separator;
    }
    first = false;
    Value part = item;
    if (attribute != nullptr) {
      BATON_ASSIGN_OR_RETURN(part, AttributeOf(run, item, *attribute));
    }
    BATON_RETURN_IF_ERROR(AppendStr(run, part, &out));
  }
  return run.String(std::move(out));
}

absl::StatusOr<Value> List(Run& run, CallArgs& args) {
  BATON_ASSIGN_OR_RETURN(const Bound bound,
                         Bound::Bind("list", args, {"value"}, 1));
  BATON_ASSIGN_OR_RETURN(Values items, Items(run, *bound.Get(0)));
  return run.List(std::move(items));
}

absl::StatusOr<Value> Reverse(Run& run, CallArgs& args) {
  BATON_ASSIGN_OR_RETURN(const Bound bound,
                         Bound::Bind("reverse", args, {"value"}, 1));
  const Value& value = *bound.Get(0);
  if (value.is_string()) {
    return GetSlice(run, value, Value::None(), Value::None(), Value::Int(-1));
  }
  const bool was_generator = value.is_sequence_of(SequenceType::kGenerator);
  BATON_ASSIGN_OR_RETURN(Values items, Items(run, value));
  std::reverse(items.begin(), items.end());
  return was_generator ? run.List(std::move(items))
                       : run.Generator(std::move(items));
}

absl::StatusOr<Value> ItemsFilter(Run& run, CallArgs& args) {
  BATON_ASSIGN_OR_RETURN(const Bound bound,
                         Bound::Bind("items", args, {"value"}, 1));
  const Value& value = *bound.Get(0);
  Values pairs;
  if (value.is_dict()) {
    for (const auto& [key, item] : value.dict().entries) {
      BATON_ASSIGN_OR_RETURN(Value pair, run.Tuple({key, item}));
      pairs.push_back(std::move(pair));
    }
  } else if (!value.is_undefined()) {
    return Error("Can only get item pairs from a mapping.");
  }
  return run.Generator(std::move(pairs));
}

absl::StatusOr<Value> Batch(Run& run, CallArgs& args) {
  BATON_ASSIGN_OR_RETURN(
      const Bound bound,
      Bound::Bind("batch", args, {"value", "linecount", "fill_with"}, 2));
  BATON_ASSIGN_OR_RETURN(const int64_t size, bound.Int(1, 0));
  BATON_ASSIGN_OR_RETURN(const Values items, Items(run, *bound.Get(0)));
  Values batches;
  Values batch;
  const auto close = [&]() -> absl::Status {
    BATON_ASSIGN_OR_RETURN(Value list, run.List(std::move(batch)));
    batches.push_back(std::move(list));
    batch.clear();
    return absl::OkStatus();
  };
  for (const Value& item : items) {
    if (static_cast<int64_t>(batch.size()) == size) {
      BATON_RETURN_IF_ERROR(close());
    }
    batch.push_back(item);
  }
  if (!batch.empty()) {
    const Value* const fill = bound.GetUnlessNone(2);
    const int64_t missing = size - static_cast<int64_t>(batch.size());
    if (fill != nullptr && missing > 0) {
      BATON_RETURN_IF_ERROR(
          run.CheckRoom(static_cast<uint64_t>(missing), sizeof(Value)));
      batch.insert(batch.end(), static_cast<size_t>(missing), *fill);
    }
    BATON_RETURN_IF_ERROR(close());
  }
  return run.Generator(std::move(batches));
}

absl::StatusOr<Value> Slice(Run& run, CallArgs& args) {
  BATON_ASSIGN_OR_RETURN(
      const Bound bound,
      Bound::Bind("slice", args, {"value", "slices", "fill_with"}, 2));
  BATON_ASSIGN_OR_RETURN(const int64_t slices, bound.Int(1, 0));
  BATON_ASSIGN_OR_RETURN(const Values items, Items(run, *bound.Get(0)));
  if (slices == 0) return Error("integer division or modulo by zero");
  Values out;
  const auto total = static_cast<int64_t>(items.size());
  BATON_RETURN_IF_ERROR(run.CheckRoom(
      static_cast<uint64_t>(std::max<int64_t>(slices, 0)), sizeof(Value)));
  const int64_t least = slices > 0 ? total / slices : 0;
  const int64_t longer = slices > 0 ? total % slices : 0;
  int64_t at = 0;
  for (int64_t i = 0; i < slices; ++i) {
    const int64_t count = least + (i < longer ? 1 : 0);
    Values part(items.begin() + at, items.begin() + at + count);
    at += count;
    if (bound.GetUnlessNone(2) != nullptr && i >= longer) {
      part.push_back(*bound.Get(2));
    }
    BATON_ASSIGN_OR_RETURN(Value list, run.List(std::move(part)));
    out.push_back(std::move(list));
  }
  return run.Generator(std::move(out));
}

absl::StatusOr<Value> Sum(Run& run, CallArgs& args) {
  BATON_ASSIGN_OR_RETURN(
      const Bound bound,
      Bound::Bind("sum", args, {"iterable", "attribute", "start"}, 1));
  BATON_ASSIGN_OR_RETURN(const Values items, Items(run, *bound.Get(0)));
  const Value* const attribute = bound.GetUnlessNone(1);
  Value total = bound.Get(2) == nullptr ? Value::Int(0) : *bound.Get(2);
  if (total.is_string()) {
    return Error("sum() can't sum strings [use ''.join(seq) instead]");
  }
  for (const Value& item : items) {
    Value part = item;
    if (attribute != nullptr) {
      BATON_ASSIGN_OR_RETURN(part, AttributeOf(run, item, *attribute));
    }
    BATON_ASSIGN_OR_RETURN(total,
                           ApplyBinary(run, BinaryOp::kAdd, total, part));
  }
  return total;
}

absl::StatusOr<Value> Attr(Run& run, CallArgs& args) {
  BATON_ASSIGN_OR_RETURN(const Bound bound,
                         Bound::Bind("attr", args, {"obj", "name"}, 2));
  BATON_ASSIGN_OR_RETURN(const std::string name, Str(run, *bound.Get(1)));
  const Value& object = *bound.Get(0);
  // Only attributes: no keys of a dict.
  if (object.is_dict()) {
    BATON_ASSIGN_OR_RETURN(const Value empty, run.Dict({}));
    return GetAttribute(run, empty, name);
  }
  return GetAttribute(run, object, name);
}

}  // namespace

void AddSequenceFilters(Filters* filters) {
  for (const auto& [name, filter] :
       {std::make_pair("length", &LengthFilter),
        std::make_pair("count", &LengthFilter), std::make_pair("first", &First),
        std::make_pair("last", &Last), std::make_pair("join", &Join),
        std::make_pair("list", &List), std::make_pair("reverse", &Reverse),
        std::make_pair("items", &ItemsFilter), std::make_pair("batch", &Batch),
        std::make_pair("slice", &Slice), std::make_pair("sum", &Sum),
        std::make_pair("attr", &Attr)}) {
    filters->emplace(name, filter);
  }
}

}  // namespace baton::router::jinja
