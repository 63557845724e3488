// How the evaluator computes expressions and calls macros.

#include <algorithm>
#include <iterator>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "router/text/jinja/compare.h"
#include "router/text/jinja/evaluator.h"
#include "router/text/jinja/filters.h"
#include "router/text/jinja/operators.h"
#include "router/text/jinja/predicates.h"
#include "router/text/jinja/value_text.h"

namespace baton::router::jinja {

absl::StatusOr<Value> Evaluator::Eval(const Expr& expr, Scope& scope) {
  const Level level(run_);
  const absl::Status paid =
      level.status().ok() ? run_.Spend(1) : level.status();
  absl::StatusOr<Value> value =
      paid.ok() ? EvalKind(expr, scope) : absl::StatusOr<Value>(paid);
  if (!value.ok()) run_.NoteErrorLine(expr.line);
  return value;
}

absl::StatusOr<Value> Evaluator::EvalKind(const Expr& expr, Scope& scope) {
  switch (expr.kind) {
    case ExprKind::kConstant:
      return expr.constant;
    case ExprKind::kName:
      return EvalName(expr, scope);
    case ExprKind::kTuple:
    case ExprKind::kList: {
      BATON_ASSIGN_OR_RETURN(Values items, EvalAll(expr.parts, scope));
      return run_.Sequence(expr.kind == ExprKind::kTuple ? SequenceType::kTuple
                                                         : SequenceType::kList,
                           std::move(items));
    }
    case ExprKind::kDict:
      return EvalDict(expr, scope);
    case ExprKind::kNot: {
      BATON_ASSIGN_OR_RETURN(const Value value, Eval(*expr.parts[0], scope));
      return Value::Bool(!Truth(value));
    }
    case ExprKind::kAnd:
    case ExprKind::kOr: {
      BATON_ASSIGN_OR_RETURN(Value left, Eval(*expr.parts[0], scope));
      if (Truth(left) == (expr.kind == ExprKind::kOr)) return left;
      return Eval(*expr.parts[1], scope);
    }
    case ExprKind::kUnary: {
      BATON_ASSIGN_OR_RETURN(const Value value, Eval(*expr.parts[0], scope));
      return ApplyUnary(run_, expr.unary, value);
    }
    case ExprKind::kBinary: {
      BATON_ASSIGN_OR_RETURN(const Value left, Eval(*expr.parts[0], scope));
      BATON_ASSIGN_OR_RETURN(const Value right, Eval(*expr.parts[1], scope));
      return ApplyBinary(run_, expr.binary, left, right);
    }
    case ExprKind::kConcat:
      return EvalConcat(expr, scope);
    case ExprKind::kCompare:
      return EvalCompare(expr, scope);
    case ExprKind::kCondition:
      return EvalCondition(expr, scope);
    case ExprKind::kAttribute: {
      BATON_ASSIGN_OR_RETURN(const Value object, Eval(*expr.parts[0], scope));
      return GetAttribute(run_, object, expr.text);
    }
    case ExprKind::kItem:
      return EvalItem(expr, scope);
    case ExprKind::kSlice:
      return Error("a slice stands where it cannot");
    case ExprKind::kCall:
      return EvalCall(expr, scope, std::nullopt);
    case ExprKind::kFilter:
      return EvalFilter(expr, scope, nullptr);
    case ExprKind::kTest:
      return EvalTest(expr, scope);
  }
  return Value();
}

absl::StatusOr<Value> Evaluator::EvalName(const Expr& expr,
                                          const Scope& scope) {
  for (const Scope* at = &scope; at != nullptr; at = at->parent) {
    if (const Value* const value = at->Find(expr.name); value != nullptr) {
      return *value;
    }
  }
  const std::optional<Value>& variable =
      variables_[static_cast<size_t>(expr.name)];
  if (variable.has_value()) return *variable;
  return Value::Undefined(
      absl::StrCat("'", root_.names.TextOf(expr.name), "' is undefined"));
}

absl::StatusOr<Values> Evaluator::EvalAll(const std::vector<ExprPtr>& exprs,
                                          Scope& scope) {
  Values values;
  values.reserve(exprs.size());
  for (const ExprPtr& expr : exprs) {
    BATON_ASSIGN_OR_RETURN(Value value, Eval(*expr, scope));
    values.push_back(std::move(value));
  }
  return values;
}

absl::StatusOr<Value> Evaluator::EvalDict(const Expr& expr, Scope& scope) {
  BATON_ASSIGN_OR_RETURN(Values parts, EvalAll(expr.parts, scope));
  std::vector<DictRep::Entry> entries;
  entries.reserve(parts.size() / 2);
  for (size_t i = 0; i + 1 < parts.size(); i += 2) {
    entries.emplace_back(std::move(parts[i]), std::move(parts[i + 1]));
  }
  return run_.Dict(std::move(entries));
}

absl::StatusOr<Value> Evaluator::EvalConcat(const Expr& expr, Scope& scope) {
  std::string text;
  for (const ExprPtr& part : expr.parts) {
    BATON_ASSIGN_OR_RETURN(const Value value, Eval(*part, scope));
    BATON_RETURN_IF_ERROR(AppendStr(run_, value, &text));
  }
  return run_.String(std::move(text));
}

namespace {

absl::StatusOr<bool> Compare(Run& run, CompareOp op, const Value& left,
                             const Value& right) {
  switch (op) {
    case CompareOp::kEq:
      return Equals(run, left, right);
    case CompareOp::kNe: {
      BATON_ASSIGN_OR_RETURN(const bool equal, Equals(run, left, right));
      return !equal;
    }
    case CompareOp::kLt:
      return IsOrdered(run, Order::kLess, left, right);
    case CompareOp::kGt:
      return IsOrdered(run, Order::kGreater, left, right);
    case CompareOp::kLe:
      return IsOrdered(run, Order::kLessOrEqual, left, right);
    case CompareOp::kGe:
      return IsOrdered(run, Order::kGreaterOrEqual, left, right);
    case CompareOp::kIn:
      return Contains(run, right, left);
    case CompareOp::kNotIn: {
      BATON_ASSIGN_OR_RETURN(const bool is_in, Contains(run, right, left));
      return !is_in;
    }
  }
  return false;
}

}  // namespace

absl::StatusOr<Value> Evaluator::EvalCompare(const Expr& expr, Scope& scope) {
  BATON_ASSIGN_OR_RETURN(Value left, Eval(*expr.parts[0], scope));
  for (size_t i = 0; i < expr.comparisons.size(); ++i) {
    BATON_ASSIGN_OR_RETURN(Value right, Eval(*expr.parts[i + 1], scope));
    BATON_ASSIGN_OR_RETURN(const bool holds,
                           Compare(run_, expr.comparisons[i], left, right));
    if (!holds) return Value::Bool(false);
    left = std::move(right);
  }
  return Value::Bool(true);
}

absl::StatusOr<Value> Evaluator::EvalCondition(const Expr& expr, Scope& scope) {
  BATON_ASSIGN_OR_RETURN(const Value test, Eval(*expr.parts[0], scope));
  if (Truth(test)) return Eval(*expr.parts[1], scope);
  if (expr.parts[2] != nullptr) return Eval(*expr.parts[2], scope);
  return Value::Undefined(
      "the inline if-expression evaluated to false and no else section was "
      "defined");
}

absl::StatusOr<Value> Evaluator::EvalItem(const Expr& expr, Scope& scope) {
  BATON_ASSIGN_OR_RETURN(const Value object, Eval(*expr.parts[0], scope));
  const Expr& index = *expr.parts[1];
  if (index.kind != ExprKind::kSlice) {
    BATON_ASSIGN_OR_RETURN(const Value value, Eval(index, scope));
    return GetItem(run_, object, value);
  }
  Values bounds;
  for (const ExprPtr& part : index.parts) {
    if (part == nullptr) {
      bounds.push_back(Value::None());
      continue;
    }
    BATON_ASSIGN_OR_RETURN(Value bound, Eval(*part, scope));
    bounds.push_back(std::move(bound));
  }
  return GetSlice(run_, object, bounds[0], bounds[1], bounds[2]);
}

absl::Status Evaluator::EvalArguments(const Arguments& arguments, Scope& scope,
                                      CallArgs* args) {
  for (const ExprPtr& expr : arguments.positional) {
    BATON_ASSIGN_OR_RETURN(Value value, Eval(*expr, scope));
    args->positional.push_back(std::move(value));
  }
  for (const auto& [name, expr] : arguments.named) {
    BATON_ASSIGN_OR_RETURN(Value value, Eval(*expr, scope));
    args->named.emplace_back(name, std::move(value));
  }
  if (arguments.star != nullptr) {
    BATON_ASSIGN_OR_RETURN(const Value star, Eval(*arguments.star, scope));
    BATON_ASSIGN_OR_RETURN(Values items, Items(run_, star));
    for (Value& item : items) args->positional.push_back(std::move(item));
  }
  if (arguments.star_star == nullptr) return absl::OkStatus();
  BATON_ASSIGN_OR_RETURN(const Value named, Eval(*arguments.star_star, scope));
  if (!named.is_dict()) {
    return Error(absl::StrCat("argument after ** must be a mapping, not ",
                              named.type_name()));
  }
  for (const auto& [key, value] : named.dict().entries) {
    if (!key.is_string()) return Error("keywords must be strings");
    for (const auto& [name, unused] : args->named) {
      if (name != key.text()) continue;
      return Error(absl::StrCat("got multiple values for keyword argument '",
                                name, "'"));
    }
    BATON_RETURN_IF_ERROR(run_.Spend(static_cast<int64_t>(args->named.size())));
    args->named.emplace_back(key.text(), value);
  }
  return absl::OkStatus();
}

absl::StatusOr<Value> Evaluator::EvalCall(const Expr& expr, Scope& scope,
                                          std::optional<Value> caller) {
  const Expr& callee = *expr.parts[0];
  const bool is_method = callee.kind == ExprKind::kAttribute;
  BATON_ASSIGN_OR_RETURN(const Value target,
                         Eval(is_method ? *callee.parts[0] : callee, scope));
  CallArgs args;
  BATON_RETURN_IF_ERROR(EvalArguments(expr.arguments, scope, &args));
  if (caller.has_value()) {
    args.named.emplace_back("caller", *std::move(caller));
  }
  if (is_method) {
    return CallMethod(run_, target, callee.text, std::move(args));
  }
  return CallValue(run_, target, std::move(args));
}

absl::StatusOr<Value> Evaluator::EvalFilter(const Expr& expr, Scope& scope,
                                            const Value* of_block) {
  CallArgs args;
  if (expr.parts[0] == nullptr) {
    args.positional.push_back(*of_block);
  } else if (expr.parts[0]->kind == ExprKind::kFilter) {
    // A block's value stands at the start of its filters.
    const Level level(run_);
    BATON_RETURN_IF_ERROR(level.status());
    BATON_ASSIGN_OR_RETURN(Value value,
                           EvalFilter(*expr.parts[0], scope, of_block));
    args.positional.push_back(std::move(value));
  } else {
    BATON_ASSIGN_OR_RETURN(Value value, Eval(*expr.parts[0], scope));
    args.positional.push_back(std::move(value));
  }
  BATON_RETURN_IF_ERROR(EvalArguments(expr.arguments, scope, &args));
  absl::StatusOr<Value> result = ApplyFilter(run_, expr.text, std::move(args));
  if (!result.ok()) run_.NoteErrorLine(expr.line);
  return result;
}

absl::StatusOr<Value> Evaluator::EvalTest(const Expr& expr, Scope& scope) {
  CallArgs args;
  BATON_ASSIGN_OR_RETURN(Value value, Eval(*expr.parts[0], scope));
  args.positional.push_back(std::move(value));
  BATON_RETURN_IF_ERROR(EvalArguments(expr.arguments, scope, &args));
  BATON_ASSIGN_OR_RETURN(const bool holds,
                         ApplyTest(run_, expr.text, std::move(args)));
  return Value::Bool(holds);
}

absl::Status Evaluator::BindParameters(const MacroNode& macro, CallArgs args,
                                       Scope& scope) {
  const size_t count = macro.parameters.size();
  const size_t given = std::min(args.positional.size(), count);
  for (size_t i = 0; i < count; ++i) {
    const Parameter& parameter = macro.parameters[i];
    if (i < given) {
      scope.Set(parameter.name, std::move(args.positional[i]));
      continue;
    }
    const auto named = std::find_if(
        args.named.begin(), args.named.end(),
        [&](const auto& each) { return each.first == parameter.text; });
    if (named != args.named.end()) {
      scope.Set(parameter.name, std::move(named->second));
      args.named.erase(named);
    } else if (parameter.fallback != nullptr) {
      BATON_ASSIGN_OR_RETURN(Value value, Eval(*parameter.fallback, scope));
      scope.Set(parameter.name, std::move(value));
    } else {
      scope.Set(parameter.name,
                Value::Undefined(absl::StrCat("parameter '", parameter.text,
                                              "' was not provided")));
    }
  }
  if (macro.uses_caller && scope.Find(Names::kCaller) == nullptr) {
    Value caller = Value::Undefined("No caller defined");
    for (auto it = args.named.begin(); it != args.named.end(); ++it) {
      if (it->first != "caller") continue;
      if (!it->second.is_none()) caller = std::move(it->second);
      args.named.erase(it);
      break;
    }
    scope.Set(Names::kCaller, std::move(caller));
  }
  if (macro.uses_kwargs) {
    std::vector<DictRep::Entry> entries;
    for (auto& [name, value] : args.named) {
      BATON_ASSIGN_OR_RETURN(Value key, run_.String(name));
      entries.emplace_back(std::move(key), std::move(value));
    }
    BATON_ASSIGN_OR_RETURN(Value dict, run_.Dict(std::move(entries)));
    scope.Set(Names::kKwargs, std::move(dict));
  } else if (!args.named.empty()) {
    return Error(absl::StrCat("macro '", macro.text,
                              "' takes no keyword argument '",
                              args.named[0].first, "'"));
  }
  if (macro.uses_varargs) {
    Values rest(std::make_move_iterator(args.positional.begin() + given),
                std::make_move_iterator(args.positional.end()));
    BATON_ASSIGN_OR_RETURN(Value tuple, run_.Tuple(std::move(rest)));
    scope.Set(Names::kVarargs, std::move(tuple));
  } else if (args.positional.size() > count) {
    return Error(absl::StrCat("macro '", macro.text, "' takes not more than ",
                              count, " argument(s)"));
  }
  return absl::OkStatus();
}

absl::StatusOr<Value> Evaluator::CallMacro(const MacroNode& macro, Scope& scope,
                                           CallArgs args) {
  const Level level(run_);
  BATON_RETURN_IF_ERROR(level.status());
  OpenScope inner(*this, &scope);
  BATON_RETURN_IF_ERROR(BindParameters(macro, std::move(args), *inner));
  std::string text;
  BATON_RETURN_IF_ERROR(Exec(macro.body, *inner, &text).status());
  return run_.String(std::move(text));
}

}  // namespace baton::router::jinja
