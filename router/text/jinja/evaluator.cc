#include "router/text/jinja/evaluator.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "router/text/jinja/compare.h"
#include "router/text/jinja/loop.h"
#include "router/text/jinja/objects.h"
#include "router/text/jinja/operators.h"
#include "router/text/jinja/value_text.h"

namespace baton::router::jinja {

const Value* Scope::Find(NameId name) const {
  for (const auto& [each, value] : variables) {
    if (each == name) return &value;
  }
  return nullptr;
}

void Scope::Set(NameId name, Value value) {
  for (auto& [each, old] : variables) {
    if (each != name) continue;
    old = std::move(value);
    return;
  }
  variables.emplace_back(name, std::move(value));
}

Evaluator::OpenScope::OpenScope(Evaluator& evaluator, Scope* parent)
    : evaluator_(evaluator), scope_(std::make_unique<Scope>(parent)) {}

Evaluator::OpenScope::~OpenScope() {
  if (scope_->captured) evaluator_.captured_.push_back(std::move(scope_));
}

absl::Status Evaluator::OpenScope::Renew() {
  if (!scope_->captured) {
    scope_->variables.clear();
    return absl::OkStatus();
  }
  Scope* const parent = scope_->parent;
  BATON_RETURN_IF_ERROR(evaluator_.run_.Hold(
      sizeof(Scope) +
      scope_->variables.capacity() * sizeof(std::pair<NameId, Value>)));
  evaluator_.captured_.push_back(std::move(scope_));
  scope_ = std::make_unique<Scope>(parent);
  return absl::OkStatus();
}

namespace {

void Capture(Scope* scope) {
  for (; scope != nullptr && !scope->captured; scope = scope->parent) {
    scope->captured = true;
  }
}

}  // namespace

Evaluator::Evaluator(const TemplateNode& root, Run& run,
                     std::vector<std::optional<Value>> variables)
    : root_(root), run_(run), variables_(std::move(variables)) {}

absl::StatusOr<std::string> Evaluator::Render() {
  std::string out;
  OpenScope scope(*this, /*parent=*/nullptr);
  BATON_RETURN_IF_ERROR(Exec(root_.body, *scope, &out).status());
  return out;
}

absl::StatusOr<Evaluator::Flow> Evaluator::Exec(const Body& body, Scope& scope,
                                                std::string* out) {
  const Level level(run_);
  BATON_RETURN_IF_ERROR(level.status());
  for (const Statement& statement : body) {
    absl::StatusOr<Flow> flow =
        run_.Spend(1).ok() ? ExecOne(statement, scope, out) : run_.Spend(0);
    if (!flow.ok()) run_.NoteErrorLine(statement.line);
    if (!flow.ok() || *flow != Flow::kNext) return flow;
  }
  return Flow::kNext;
}

absl::StatusOr<Evaluator::Flow> Evaluator::ExecOne(const Statement& statement,
                                                   Scope& scope,
                                                   std::string* out) {
  absl::Status status;
  switch (statement.kind) {
    case StatementKind::kText:
      status = ExecText(statement.text, out);
      break;
    case StatementKind::kOutput:
      status = ExecOutput(statement, scope, out);
      break;
    case StatementKind::kIf:
      return ExecIf(statement, scope, out);
    case StatementKind::kFor: {
      BATON_ASSIGN_OR_RETURN(const Value iterable,
                             Eval(*statement.exprs[0], scope));
      return RunLoop(statement, iterable, scope, /*depth=*/0, out);
    }
    case StatementKind::kSet:
      status = ExecSet(statement, scope);
      break;
    case StatementKind::kSetBlock:
      status = ExecSetBlock(statement, scope);
      break;
    case StatementKind::kMacro:
      status = ExecMacro(statement, scope);
      break;
    case StatementKind::kCallBlock:
      status = ExecCallBlock(statement, scope, out);
      break;
    case StatementKind::kFilterBlock:
      status = ExecFilterBlock(statement, scope, out);
      break;
    case StatementKind::kWith:
      status = ExecWith(statement, scope, out);
      break;
    case StatementKind::kScope: {
      OpenScope inner(*this, &scope);
      return Exec(statement.body, *inner, out);
    }
    case StatementKind::kBreak:
      return Flow::kBreak;
    case StatementKind::kContinue:
      return Flow::kContinue;
  }
  if (!status.ok()) return status;
  return Flow::kNext;
}

absl::StatusOr<Evaluator::Flow> Evaluator::ExecIf(const Statement& statement,
                                                  Scope& scope,
                                                  std::string* out) {
  for (const auto& [test, body] : statement.branches) {
    BATON_ASSIGN_OR_RETURN(const Value value, Eval(*test, scope));
    if (Truth(value)) return Exec(body, scope, out);
  }
  return Exec(statement.else_body, scope, out);
}

absl::Status Evaluator::ExecText(const std::string& text, std::string* out) {
  BATON_RETURN_IF_ERROR(run_.SpendText(text.size()));
  BATON_RETURN_IF_ERROR(run_.CheckLength(out->size() + text.size()));
  out->append(text);
  return absl::OkStatus();
}

absl::Status Evaluator::ExecOutput(const Statement& statement, Scope& scope,
                                   std::string* out) {
  for (const ExprPtr& expr : statement.exprs) {
    BATON_ASSIGN_OR_RETURN(const Value value, Eval(*expr, scope));
    BATON_RETURN_IF_ERROR(AppendStr(run_, value, out));
  }
  return absl::OkStatus();
}

absl::Status Evaluator::ExecSet(const Statement& statement, Scope& scope) {
  BATON_ASSIGN_OR_RETURN(Value value, Eval(*statement.exprs[0], scope));
  return Assign(statement.target, std::move(value), scope);
}

absl::StatusOr<Value> Evaluator::TextOf(const Body& body, const Expr* filter,
                                        Scope& scope) {
  OpenScope inner(*this, &scope);
  std::string text;
  BATON_RETURN_IF_ERROR(Exec(body, *inner, &text).status());
  BATON_ASSIGN_OR_RETURN(Value value, run_.String(std::move(text)));
  if (filter == nullptr) return value;
  return EvalFilter(*filter, *inner, &value);
}

absl::Status Evaluator::ExecSetBlock(const Statement& statement, Scope& scope) {
  BATON_ASSIGN_OR_RETURN(Value value,
                         TextOf(statement.body, statement.filter.get(), scope));
  return Assign(statement.target, std::move(value), scope);
}

absl::StatusOr<Value> Evaluator::BindMacro(const MacroNode& macro,
                                           Scope& scope) {
  Capture(&scope);
  BATON_ASSIGN_OR_RETURN(Macro* const object, run_.Own(std::make_unique<Macro>(
                                                  *this, macro, scope)));
  return Value::Of(object);
}

absl::Status Evaluator::ExecMacro(const Statement& statement, Scope& scope) {
  BATON_ASSIGN_OR_RETURN(Value macro, BindMacro(*statement.macro, scope));
  scope.Set(statement.macro->name, std::move(macro));
  return absl::OkStatus();
}

absl::Status Evaluator::ExecCallBlock(const Statement& statement, Scope& scope,
                                      std::string* out) {
  BATON_ASSIGN_OR_RETURN(Value caller, BindMacro(*statement.macro, scope));
  BATON_ASSIGN_OR_RETURN(const Value value, EvalCall(*statement.exprs[0], scope,
                                                     std::move(caller)));
  return AppendStr(run_, value, out);
}

absl::Status Evaluator::ExecFilterBlock(const Statement& statement,
                                        Scope& scope, std::string* out) {
  BATON_ASSIGN_OR_RETURN(const Value value,
                         TextOf(statement.body, statement.filter.get(), scope));
  return AppendStr(run_, value, out);
}

absl::Status Evaluator::ExecWith(const Statement& statement, Scope& scope,
                                 std::string* out) {
  OpenScope inner(*this, &scope);
  for (size_t i = 0; i < statement.targets.size(); ++i) {
    // As in Jinja, none of the values sees the new names.
    BATON_ASSIGN_OR_RETURN(Value value, Eval(*statement.exprs[i], scope));
    BATON_RETURN_IF_ERROR(
        Assign(statement.targets[i], std::move(value), *inner));
  }
  return Exec(statement.body, *inner, out).status();
}

absl::Status Evaluator::Assign(const Target& target, Value value,
                               Scope& scope) {
  switch (target.kind) {
    case Target::Kind::kName:
      scope.Set(target.name, std::move(value));
      return absl::OkStatus();
    case Target::Kind::kTuple:
      return AssignParts(target, value, scope);
    case Target::Kind::kNamespace:
      break;
  }
  Expr name;
  name.name = target.name;
  BATON_ASSIGN_OR_RETURN(const Value object, EvalName(name, scope));
  auto* const space =
      object.is_object() ? dynamic_cast<Namespace*>(object.object()) : nullptr;
  if (space == nullptr) {
    return Error("cannot assign attribute on non-namespace object");
  }
  return space->Set(run_, target.attribute, std::move(value));
}

absl::Status Evaluator::AssignParts(const Target& target, const Value& value,
                                    Scope& scope) {
  BATON_ASSIGN_OR_RETURN(Values items,
                         Items(run_, value, "cannot unpack non-iterable "));
  const size_t wanted = target.parts.size();
  if (items.size() > wanted) {
    return Error(
        absl::StrCat("too many values to unpack (expected ", wanted, ")"));
  }
  if (items.size() < wanted) {
    return Error(absl::StrCat("not enough values to unpack (expected ", wanted,
                              ", got ", items.size(), ")"));
  }
  for (size_t i = 0; i < wanted; ++i) {
    BATON_RETURN_IF_ERROR(Assign(target.parts[i], std::move(items[i]), scope));
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> Evaluator::Passes(const Statement& loop, const Value& item,
                                       Scope& scope) {
  OpenScope inner(*this, &scope);
  BATON_RETURN_IF_ERROR(run_.Spend(1));
  BATON_RETURN_IF_ERROR(Assign(loop.target, item, *inner));
  BATON_ASSIGN_OR_RETURN(const Value value, Eval(*loop.exprs[1], *inner));
  return Truth(value);
}

absl::StatusOr<Evaluator::Flow> Evaluator::RunLoop(const Statement& loop,
                                                   const Value& iterable,
                                                   Scope& scope, int depth,
                                                   std::string* out) {
  const Level level(run_);
  BATON_RETURN_IF_ERROR(level.status());
  auto state = std::make_unique<Loop>(*this, loop, scope, depth);
  BATON_RETURN_IF_ERROR(state->Start(iterable));
  Loop* const current = state.get();
  if (loop.uses_loop) {
    // Somebody may keep the loop, which may look into its outer scope.
    if (loop.recursive || loop.exprs[1] != nullptr) Capture(&scope);
    BATON_RETURN_IF_ERROR(run_.Own(std::move(state)).status());
  }
  bool any_ended = false;
  {
    OpenScope inner(*this, &scope);
    while (true) {
      BATON_RETURN_IF_ERROR(run_.Spend(1));
      BATON_ASSIGN_OR_RETURN(const bool more, current->Advance());
      if (!more) break;
      BATON_RETURN_IF_ERROR(inner.Renew());
      if (loop.uses_loop) (*inner).Set(Names::kLoop, Value::Of(current));
      BATON_RETURN_IF_ERROR(Assign(loop.target, current->item(), *inner));
      BATON_ASSIGN_OR_RETURN(const Flow flow, Exec(loop.body, *inner, out));
      if (flow == Flow::kBreak) break;
      any_ended = any_ended || flow == Flow::kNext;
    }
  }
  // Jinja runs the else block unless an iteration came to its end: also after
  // one that was broken off.
  if (any_ended || loop.else_body.empty()) return Flow::kNext;
  OpenScope inner(*this, &scope);
  return Exec(loop.else_body, *inner, out);
}

}  // namespace baton::router::jinja
