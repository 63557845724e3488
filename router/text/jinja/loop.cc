#include "router/text/jinja/loop.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "router/text/jinja/compare.h"
#include "router/text/jinja/objects.h"
#include "router/text/jinja/operators.h"

namespace baton::router::jinja {

absl::Status Loop::Start(const Value& iterable) {
  if (iterable.is_sequence_of(SequenceType::kGenerator)) {
    generator_ = iterable;
  } else {
    BATON_ASSIGN_OR_RETURN(items_, Items(evaluator_.run(), iterable));
    is_all_ = statement_.exprs[1] == nullptr;
    if (is_all_) length_ = static_cast<int64_t>(items_.size());
  }
  // `loop` stays as long as the run does.
  if (!statement_.uses_loop) return absl::OkStatus();
  return evaluator_.run().Hold(items_.size() * sizeof(Value));
}

absl::StatusOr<std::optional<Value>> Loop::Next() {
  while (true) {
    Value item;
    if (generator_.is_sequence()) {
      const SequenceRep& source = generator_.sequence();
      if (source.taken >= source.items.size()) return std::optional<Value>();
      item = source.items[source.taken++];
    } else {
      if (at_ >= items_.size()) return std::optional<Value>();
      item = items_[at_++];
    }
    if (is_all_ || statement_.exprs[1] == nullptr) {
      return std::optional<Value>(std::move(item));
    }
    BATON_ASSIGN_OR_RETURN(const bool passes,
                           evaluator_.Passes(statement_, item, outer_));
    if (passes) return std::optional<Value>(std::move(item));
  }
}

absl::StatusOr<bool> Loop::Advance() {
  std::optional<Value> next = std::exchange(after_, std::nullopt);
  if (!next.has_value()) {
    BATON_ASSIGN_OR_RETURN(next, Next());
  }
  if (!next.has_value()) return false;
  ++index0_;
  previous_ = std::move(current_);
  current_ = std::move(next);
  return true;
}

absl::StatusOr<bool> Loop::HasNext() {
  if (!after_.has_value()) {
    BATON_ASSIGN_OR_RETURN(after_, Next());
  }
  return after_.has_value();
}

absl::StatusOr<int64_t> Loop::Length() {
  if (length_.has_value()) return *length_;
  Values rest;
  while (true) {
    BATON_ASSIGN_OR_RETURN(std::optional<Value> next, Next());
    if (!next.has_value()) break;
    rest.push_back(*std::move(next));
  }
  length_ = static_cast<int64_t>(rest.size()) + index0_ + 1 +
            (after_.has_value() ? 1 : 0);
  items_ = std::move(rest);
  at_ = 0;
  is_all_ = true;
  generator_ = Value();
  return *length_;
}

absl::StatusOr<std::string> Loop::Repr(Run& run) const {
  return absl::StrCat("<LoopContext ", index0_ + 1, "/",
                      length_.value_or(index0_ + 1), ">");
}

absl::StatusOr<Value> Loop::Attribute(Run& run, absl::string_view name) {
  if (name == "index") return Value::Int(index0_ + 1);
  if (name == "index0") return Value::Int(index0_);
  if (name == "first") return Value::Bool(index0_ == 0);
  if (name == "depth") return Value::Int(depth_ + 1);
  if (name == "depth0") return Value::Int(depth_);
  if (name == "last") {
    BATON_ASSIGN_OR_RETURN(const bool more, HasNext());
    return Value::Bool(!more);
  }
  if (name == "nextitem") {
    BATON_ASSIGN_OR_RETURN(const bool more, HasNext());
    return more ? *after_ : Value::Undefined("there is no next item");
  }
  if (name == "previtem") {
    return index0_ > 0 && previous_.has_value()
               ? *previous_
               : Value::Undefined("there is no previous item");
  }
  if (name == "length" || name == "revindex" || name == "revindex0") {
    BATON_ASSIGN_OR_RETURN(const int64_t length, Length());
    return Value::Int(name == "length"     ? length
                      : name == "revindex" ? length - index0_
                                           : length - index0_ - 1);
  }
  if (name == "cycle" || name == "changed") {
    BATON_ASSIGN_OR_RETURN(
        BoundMethod* const method,
        run.Own(std::make_unique<BoundMethod>(Value::Of(this), name)));
    return Value::Of(method);
  }
  return Object::Attribute(run, name);
}

absl::StatusOr<Value> Loop::Cycle(const CallArgs& args) const {
  if (args.positional.empty()) return Error("no items for cycling given");
  const auto count = static_cast<int64_t>(args.positional.size());
  return args
      .positional[static_cast<size_t>(index0_ < 0 ? 0 : index0_ % count)];
}

absl::StatusOr<Value> Loop::Changed(Run& run, CallArgs args) {
  BATON_ASSIGN_OR_RETURN(Value now, run.Tuple(std::move(args.positional)));
  bool equal = false;
  if (last_changed_.has_value()) {
    BATON_ASSIGN_OR_RETURN(equal, Equals(run, *last_changed_, now));
  }
  if (!equal) last_changed_ = std::move(now);
  return Value::Bool(!equal);
}

absl::StatusOr<Value> Loop::CallMethod(Run& run, absl::string_view name,
                                       CallArgs args) {
  if (name != "cycle" && name != "changed") {
    return Object::CallMethod(run, name, std::move(args));
  }
  if (!args.named.empty()) {
    return Error(absl::StrCat("loop.", name, "() takes no keyword arguments"));
  }
  return name == "cycle" ? Cycle(args) : Changed(run, std::move(args));
}

absl::StatusOr<Value> Loop::Call(Run& run, CallArgs args) {
  if (!statement_.recursive) {
    return Error(
        "the loop must have the 'recursive' marker to be called recursively");
  }
  if (args.positional.size() != 1 || !args.named.empty()) {
    return Error("loop() takes exactly one argument");
  }
  std::string out;
  BATON_RETURN_IF_ERROR(
      evaluator_
          .RunLoop(statement_, args.positional[0], outer_, depth_ + 1, &out)
          .status());
  return run.String(std::move(out));
}

}  // namespace baton::router::jinja
