#include "router/text/jinja/objects.h"

#include <ctime>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/status_macros.h"
#include "router/text/jinja/arguments.h"
#include "router/text/jinja/operators.h"
#include "router/text/jinja/python_text.h"
#include "router/text/jinja/value_text.h"

namespace baton::router::jinja {
namespace {

// What cycler(...) makes.
class Cycler final : public Object {
 public:
  explicit Cycler(Values items) : items_(std::move(items)) {}

  absl::string_view type_name() const override { return "Cycler"; }
  absl::StatusOr<Value> Attribute(Run& run, absl::string_view name) override {
    if (name == "current") return items_[at_];
    if (name != "next" && name != "reset") return Object::Attribute(run, name);
    BATON_ASSIGN_OR_RETURN(
        BoundMethod* const method,
        run.Own(std::make_unique<BoundMethod>(Value::Of(this), name)));
    return Value::Of(method);
  }
  absl::StatusOr<Value> CallMethod(Run& run, absl::string_view name,
                                   CallArgs args) override {
    if (name == "reset") {
      at_ = 0;
      return Value::None();
    }
    if (name != "next") return Object::CallMethod(run, name, std::move(args));
    const Value now = items_[at_];
    at_ = (at_ + 1) % items_.size();
    return now;
  }

 private:
  const Values items_;
  size_t at_ = 0;
};

// What joiner(...) makes: nothing at first, then its separator.
class Joiner final : public Object {
 public:
  explicit Joiner(Value separator) : separator_(std::move(separator)) {}

  absl::string_view type_name() const override { return "Joiner"; }
  bool callable() const override { return true; }
  absl::StatusOr<Value> Call(Run& run, CallArgs args) override {
    if (std::exchange(used_, true)) return separator_;
    return run.String("");
  }

 private:
  const Value separator_;
  bool used_ = false;
};

absl::StatusOr<Value> Range(Run& run, CallArgs& args) {
  if (args.positional.empty() || args.positional.size() > 3 ||
      !args.named.empty()) {
    return Error("range() takes one to three positional arguments");
  }
  std::vector<Integer> numbers;
  for (const Value& value : args.positional) {
    BATON_ASSIGN_OR_RETURN(const Integer number, AsInteger(value));
    numbers.push_back(number);
  }
  const Integer start = numbers.size() > 1 ? numbers[0] : Integer{0};
  const Integer stop = numbers.size() > 1 ? numbers[1] : numbers[0];
  const Integer step = numbers.size() > 2 ? numbers[2] : Integer{1};
  if (step == 0) return Error("range() arg 3 must not be zero");
  Values items;
  Integer at = start;
  while (step > 0 ? at < stop : at > stop) {
    if (static_cast<int64_t>(items.size()) >= kMaxRange) {
      return Error(absl::StrCat(
          "Range too big. The sandbox blocks ranges larger than MAX_RANGE (",
          kMaxRange, ")."));
    }
    items.push_back(Value::Int(at));
    if (__builtin_add_overflow(at, step, &at)) break;
  }
  return run.Sequence(SequenceType::kRange, std::move(items));
}

// The entries of dict(mapping or pairs, **named) and namespace(...).
absl::StatusOr<Value> Dict(Run& run, CallArgs& args) {
  if (args.positional.size() > 1) {
    return Error(absl::StrCat("dict expected at most 1 argument, got ",
                              args.positional.size()));
  }
  std::vector<DictRep::Entry> entries;
  if (!args.positional.empty() && args.positional[0].is_dict()) {
    entries = args.positional[0].dict().entries;
  } else if (!args.positional.empty()) {
    BATON_ASSIGN_OR_RETURN(const Values pairs, Items(run, args.positional[0]));
    for (const Value& pair : pairs) {
      BATON_ASSIGN_OR_RETURN(Values parts, Items(run, pair));
      if (parts.size() != 2) {
        return Error("dict() takes pairs, and one has not two parts");
      }
      entries.emplace_back(std::move(parts[0]), std::move(parts[1]));
    }
  }
  for (auto& [name, value] : args.named) {
    BATON_ASSIGN_OR_RETURN(Value key, run.String(name));
    entries.emplace_back(std::move(key), std::move(value));
  }
  return run.Dict(std::move(entries));
}

absl::StatusOr<Value> MakeNamespace(Run& run, CallArgs& args) {
  BATON_ASSIGN_OR_RETURN(const Value dict, Dict(run, args));
  BATON_ASSIGN_OR_RETURN(Namespace* const space,
                         run.Own(std::make_unique<Namespace>()));
  for (const auto& [key, value] : dict.dict().entries) {
    if (!key.is_string()) return Error("namespace() takes names");
    BATON_RETURN_IF_ERROR(space->Set(run, key.text(), value));
  }
  return Value::Of(space);
}

absl::StatusOr<Value> MakeCycler(Run& run, CallArgs& args) {
  if (args.positional.empty())
    return Error("at least one item has to be provided");
  BATON_ASSIGN_OR_RETURN(
      Cycler* const cycler,
      run.Own(std::make_unique<Cycler>(std::move(args.positional))));
  return Value::Of(cycler);
}

absl::StatusOr<Value> MakeJoiner(Run& run, CallArgs& args) {
  BATON_ASSIGN_OR_RETURN(const Bound bound,
                         Bound::Bind("joiner", args, {"sep"}, 0));
  BATON_ASSIGN_OR_RETURN(const Value comma, run.String(", "));
  const Value* const separator = bound.Get(0);
  BATON_ASSIGN_OR_RETURN(Joiner* const joiner,
                         run.Own(std::make_unique<Joiner>(
                             separator == nullptr ? comma : *separator)));
  return Value::Of(joiner);
}

absl::StatusOr<Value> RaiseException(Run& run, CallArgs& args) {
  BATON_ASSIGN_OR_RETURN(const Bound bound,
                         Bound::Bind("raise_exception", args, {"message"}, 1));
  BATON_ASSIGN_OR_RETURN(const std::string message, Str(run, *bound.Get(0)));
  run.NoteRaised();
  return Error(message);
}

absl::StatusOr<Value> StrftimeNow(Run& run, CallArgs& args) {
  BATON_ASSIGN_OR_RETURN(const Bound bound,
                         Bound::Bind("strftime_now", args, {"format"}, 1));
  if (!bound.Get(0)->is_string()) {
    return Error(absl::StrCat("strftime() argument 1 must be str, not ",
                              bound.Get(0)->type_name()));
  }
  constexpr size_t kMaxFormat = 256;
  const std::string& format = bound.Get(0)->text();
  if (format.size() > kMaxFormat) return Error("the date format is too long");
  const std::tm local = absl::ToTM(run.now(), absl::LocalTimeZone());
  // Python's own %f, and its answer to %z and %Z without a time zone.
  std::string own;
  for (size_t i = 0; i < format.size(); ++i) {
    if (format[i] != '%' || i + 1 == format.size()) {
      own.push_back(format[i]);
      continue;
    }
    const char letter = format[++i];
    if (letter == 'f') {
      const int64_t microseconds = absl::ToUnixMicros(run.now()) % 1'000'000;
      const std::string digits = absl::StrCat(
          microseconds < 0 ? microseconds + 1'000'000 : microseconds);
      own += std::string(6 - digits.size(), '0') + digits;
    } else if (letter != 'z' && letter != 'Z') {
      own.push_back('%');
      own.push_back(letter);
    }
  }
  if (own.empty()) return run.String("");
  // A text that is not empty tells success from a buffer that is too small.
  own.push_back('.');
  std::string out(4096, '\0');
  out.resize(std::strftime(out.data(), out.size(), own.c_str(), &local));
  if (out.empty()) return Error("the date is too long");
  out.pop_back();
  return run.String(std::move(out));
}

}  // namespace

absl::StatusOr<std::string> Function::Repr(Run& run) const {
  return absl::StrCat("<function ", name_, ">");
}

absl::StatusOr<Value> BoundMethod::Call(Run& run, CallArgs args) {
  return jinja::CallMethod(run, self_, name_, std::move(args));
}

absl::StatusOr<std::string> Namespace::Repr(Run& run) const {
  std::vector<DictRep::Entry> entries;
  for (const auto& [name, value] : attributes_) {
    BATON_ASSIGN_OR_RETURN(Value key, run.String(name));
    entries.emplace_back(std::move(key), value);
  }
  BATON_ASSIGN_OR_RETURN(const Value dict, run.Dict(std::move(entries)));
  BATON_ASSIGN_OR_RETURN(const std::string text, jinja::Repr(run, dict));
  return absl::StrCat("<Namespace ", text, ">");
}

absl::StatusOr<Value> Namespace::Attribute(Run& run, absl::string_view name) {
  for (const auto& [each, value] : attributes_) {
    if (each == name) return value;
  }
  return Object::Attribute(run, name);
}

absl::Status Namespace::Set(Run& run, absl::string_view name, Value value) {
  for (auto& [each, old] : attributes_) {
    if (each != name) continue;
    old = std::move(value);
    return absl::OkStatus();
  }
  BATON_RETURN_IF_ERROR(run.Hold(name.size() + kStringOverhead));
  BATON_RETURN_IF_ERROR(run.Spend(static_cast<int64_t>(attributes_.size())));
  attributes_.emplace_back(std::string(name), std::move(value));
  return absl::OkStatus();
}

absl::StatusOr<std::string> Macro::Repr(Run& run) const {
  return absl::StrCat("<Macro ", ReprText(macro_.text), ">");
}

absl::StatusOr<Value> Macro::Attribute(Run& run, absl::string_view name) {
  if (name == "name") return run.String(macro_.text);
  return Object::Attribute(run, name);
}

Object* FindGlobal(absl::string_view name) {
  static const auto* globals =
      new absl::flat_hash_map<absl::string_view, Function*>{
          {"range", new Function("range", Range)},
          {"dict", new Function("dict", Dict)},
          {"namespace", new Function("namespace", MakeNamespace)},
          {"cycler", new Function("cycler", MakeCycler)},
          {"joiner", new Function("joiner", MakeJoiner)},
          {"raise_exception", new Function("raise_exception", RaiseException)},
          {"strftime_now", new Function("strftime_now", StrftimeNow)},
      };
  const auto it = globals->find(name);
  return it == globals->end() ? nullptr : it->second;
}

}  // namespace baton::router::jinja
