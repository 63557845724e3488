// What templates call and what may change: functions, macros, methods that
// were not called yet, and namespaces. (Loops are in loop.h.)
//
// The thread of their Run, which owns them; a Function is the program's, and
// any thread may call it.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "router/text/jinja/evaluator.h"
#include "router/text/jinja/run.h"
#include "router/text/jinja/value.h"

namespace baton::router::jinja {

// A function of ours: a global of templates, a filter or a test.
using Builtin = absl::StatusOr<Value> (*)(Run& run, CallArgs& args);

class Function final : public Object {
 public:
  Function(absl::string_view name, Builtin builtin)
      : name_(name), builtin_(builtin) {}

  absl::string_view type_name() const override { return "function"; }
  bool callable() const override { return true; }
  absl::StatusOr<std::string> Repr(Run& run) const override;
  absl::StatusOr<Value> Call(Run& run, CallArgs args) override {
    return builtin_(run, args);
  }

 private:
  const std::string name_;
  const Builtin builtin_;
};

// A value's method, for a template that names it without calling it.
class BoundMethod final : public Object {
 public:
  BoundMethod(Value self, absl::string_view name)
      : self_(std::move(self)), name_(name) {}

  absl::string_view type_name() const override {
    return "builtin_function_or_method";
  }
  bool callable() const override { return true; }
  absl::StatusOr<Value> Call(Run& run, CallArgs args) override;

 private:
  const Value self_;
  const std::string name_;
};

// What {% set name.attribute = ... %} changes.
class Namespace final : public Object {
 public:
  absl::string_view type_name() const override { return "Namespace"; }
  absl::StatusOr<std::string> Repr(Run& run) const override;
  absl::StatusOr<Value> Attribute(Run& run, absl::string_view name) override;
  absl::Status Set(Run& run, absl::string_view name, Value value);

 private:
  std::vector<std::pair<std::string, Value>> attributes_;
};

class Macro final : public Object {
 public:
  Macro(Evaluator& evaluator, const MacroNode& macro, Scope& scope)
      : evaluator_(evaluator), macro_(macro), scope_(scope) {}

  absl::string_view type_name() const override { return "Macro"; }
  bool callable() const override { return true; }
  absl::StatusOr<std::string> Repr(Run& run) const override;
  absl::StatusOr<Value> Attribute(Run& run, absl::string_view name) override;
  absl::StatusOr<Value> Call(Run& run, CallArgs args) override {
    return evaluator_.CallMacro(macro_, scope_, std::move(args));
  }

 private:
  Evaluator& evaluator_;
  const MacroNode& macro_;
  Scope& scope_;
};

// The function that templates know by this name without any variable: range,
// dict, namespace, cycler, joiner, raise_exception, strftime_now. Null for
// others.
Object* FindGlobal(absl::string_view name);

}  // namespace baton::router::jinja
