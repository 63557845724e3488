// Expressions: each function reads one level of precedence.

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "router/text/jinja/parser_internal.h"
#include "router/text/jinja/run.h"

namespace baton::router::jinja {
namespace {

struct ComparisonSymbol {
  absl::string_view text;
  CompareOp op;
};
constexpr std::array<ComparisonSymbol, 6> kComparisons = {{
    {"==", CompareOp::kEq},
    {"!=", CompareOp::kNe},
    {"<", CompareOp::kLt},
    {"<=", CompareOp::kLe},
    {">", CompareOp::kGt},
    {">=", CompareOp::kGe},
}};

int DepthOf(const ExprPtr& part) { return part == nullptr ? 0 : part->depth; }

}  // namespace

Expr ExpressionParser::New(ExprKind kind) const {
  Expr expr;
  expr.kind = kind;
  expr.line = in_.line();
  return expr;
}

absl::StatusOr<ExprPtr> ExpressionParser::Finish(Expr expr) const {
  int depth = 0;
  for (const ExprPtr& part : expr.parts) depth = std::max(depth, DepthOf(part));
  for (const ExprPtr& each : expr.arguments.positional) {
    depth = std::max(depth, DepthOf(each));
  }
  for (const auto& [name, value] : expr.arguments.named) {
    depth = std::max(depth, DepthOf(value));
  }
  depth = std::max(
      {depth, DepthOf(expr.arguments.star), DepthOf(expr.arguments.star_star)});
  expr.depth = depth + 1;
  if (expr.depth > kMaxSourceDepth) {
    return in_.Fail(absl::StrCat("an expression has more than ",
                                 kMaxSourceDepth, " levels"));
  }
  return std::make_unique<const Expr>(std::move(expr));
}

absl::StatusOr<ExprPtr> ExpressionParser::Binary(BinaryOp op, int line,
                                                 ExprPtr left,
                                                 ExprPtr right) const {
  Expr expr = New(ExprKind::kBinary);
  expr.line = line;
  expr.binary = op;
  expr.parts.push_back(std::move(left));
  expr.parts.push_back(std::move(right));
  return Finish(std::move(expr));
}

absl::StatusOr<ExprPtr> ExpressionParser::Expression() {
  const Nesting nesting(&depth_, in_);
  BATON_RETURN_IF_ERROR(nesting.status());
  BATON_ASSIGN_OR_RETURN(ExprPtr value, Or());
  while (in_.current().IsName("if")) {
    Expr condition = New(ExprKind::kCondition);
    in_.Skip();
    BATON_ASSIGN_OR_RETURN(ExprPtr test, Or());
    ExprPtr other;
    if (in_.SkipName("else")) {
      BATON_ASSIGN_OR_RETURN(other, Expression());
    }
    condition.parts.push_back(std::move(test));
    condition.parts.push_back(std::move(value));
    condition.parts.push_back(std::move(other));
    BATON_ASSIGN_OR_RETURN(value, Finish(std::move(condition)));
  }
  return value;
}

absl::StatusOr<ExprPtr> ExpressionParser::Or() {
  BATON_ASSIGN_OR_RETURN(ExprPtr left, And());
  while (in_.current().IsName("or")) {
    Expr expr = New(ExprKind::kOr);
    in_.Skip();
    BATON_ASSIGN_OR_RETURN(ExprPtr right, And());
    expr.parts.push_back(std::move(left));
    expr.parts.push_back(std::move(right));
    BATON_ASSIGN_OR_RETURN(left, Finish(std::move(expr)));
  }
  return left;
}

absl::StatusOr<ExprPtr> ExpressionParser::And() {
  BATON_ASSIGN_OR_RETURN(ExprPtr left, Not());
  while (in_.current().IsName("and")) {
    Expr expr = New(ExprKind::kAnd);
    in_.Skip();
    BATON_ASSIGN_OR_RETURN(ExprPtr right, Not());
    expr.parts.push_back(std::move(left));
    expr.parts.push_back(std::move(right));
    BATON_ASSIGN_OR_RETURN(left, Finish(std::move(expr)));
  }
  return left;
}

absl::StatusOr<ExprPtr> ExpressionParser::Not() {
  if (!in_.current().IsName("not")) return Comparison();
  const Nesting nesting(&depth_, in_);
  BATON_RETURN_IF_ERROR(nesting.status());
  Expr expr = New(ExprKind::kNot);
  in_.Skip();
  BATON_ASSIGN_OR_RETURN(ExprPtr operand, Not());
  expr.parts.push_back(std::move(operand));
  return Finish(std::move(expr));
}

absl::StatusOr<ExprPtr> ExpressionParser::Comparison() {
  Expr expr = New(ExprKind::kCompare);
  BATON_ASSIGN_OR_RETURN(ExprPtr first, Sum());
  expr.parts.push_back(std::move(first));
  while (true) {
    const Token& token = in_.current();
    const auto symbol = std::find_if(
        kComparisons.begin(), kComparisons.end(),
        [&](const auto& each) { return token.IsOperator(each.text); });
    if (symbol != kComparisons.end()) {
      expr.comparisons.push_back(symbol->op);
    } else if (token.IsName("in")) {
      expr.comparisons.push_back(CompareOp::kIn);
    } else if (token.IsName("not") && in_.next().IsName("in")) {
      in_.Skip();
      expr.comparisons.push_back(CompareOp::kNotIn);
    } else {
      break;
    }
    in_.Skip();
    BATON_ASSIGN_OR_RETURN(ExprPtr operand, Sum());
    expr.parts.push_back(std::move(operand));
  }
  if (expr.comparisons.empty()) {
    ExprPtr only = std::move(expr.parts[0]);
    return only;
  }
  return Finish(std::move(expr));
}

absl::StatusOr<ExprPtr> ExpressionParser::Sum() {
  BATON_ASSIGN_OR_RETURN(ExprPtr left, Concatenation());
  while (in_.current().IsOperator("+") || in_.current().IsOperator("-")) {
    const BinaryOp op =
        in_.current().IsOperator("+") ? BinaryOp::kAdd : BinaryOp::kSubtract;
    const int line = in_.line();
    in_.Skip();
    BATON_ASSIGN_OR_RETURN(ExprPtr right, Concatenation());
    BATON_ASSIGN_OR_RETURN(left,
                           Binary(op, line, std::move(left), std::move(right)));
  }
  return left;
}

absl::StatusOr<ExprPtr> ExpressionParser::Concatenation() {
  Expr expr = New(ExprKind::kConcat);
  BATON_ASSIGN_OR_RETURN(ExprPtr first, Product());
  expr.parts.push_back(std::move(first));
  while (in_.SkipOperator("~")) {
    BATON_ASSIGN_OR_RETURN(ExprPtr each, Product());
    expr.parts.push_back(std::move(each));
  }
  if (expr.parts.size() > 1) return Finish(std::move(expr));
  ExprPtr only = std::move(expr.parts[0]);
  return only;
}

absl::StatusOr<ExprPtr> ExpressionParser::Product() {
  BATON_ASSIGN_OR_RETURN(ExprPtr left, Power());
  while (true) {
    const Token& token = in_.current();
    BinaryOp op;
    if (token.IsOperator("*")) {
      op = BinaryOp::kMultiply;
    } else if (token.IsOperator("/")) {
      op = BinaryOp::kDivide;
    } else if (token.IsOperator("//")) {
      op = BinaryOp::kFloorDivide;
    } else if (token.IsOperator("%")) {
      op = BinaryOp::kModulo;
    } else {
      return left;
    }
    const int line = in_.line();
    in_.Skip();
    BATON_ASSIGN_OR_RETURN(ExprPtr right, Power());
    BATON_ASSIGN_OR_RETURN(left,
                           Binary(op, line, std::move(left), std::move(right)));
  }
}

absl::StatusOr<ExprPtr> ExpressionParser::Power() {
  BATON_ASSIGN_OR_RETURN(ExprPtr left, Unary(/*with_filter=*/true));
  while (in_.current().IsOperator("**")) {
    const int line = in_.line();
    in_.Skip();
    BATON_ASSIGN_OR_RETURN(ExprPtr right, Unary(/*with_filter=*/true));
    BATON_ASSIGN_OR_RETURN(left, Binary(BinaryOp::kPower, line, std::move(left),
                                        std::move(right)));
  }
  return left;
}

absl::StatusOr<ExprPtr> ExpressionParser::Unary(bool with_filter) {
  const Nesting nesting(&depth_, in_);
  BATON_RETURN_IF_ERROR(nesting.status());
  ExprPtr value;
  if (in_.current().IsOperator("-") || in_.current().IsOperator("+")) {
    Expr expr = New(ExprKind::kUnary);
    expr.unary = in_.current().text[0];
    in_.Skip();
    BATON_ASSIGN_OR_RETURN(ExprPtr operand, Unary(/*with_filter=*/false));
    expr.parts.push_back(std::move(operand));
    BATON_ASSIGN_OR_RETURN(value, Finish(std::move(expr)));
  } else {
    BATON_ASSIGN_OR_RETURN(value, Primary());
  }
  BATON_ASSIGN_OR_RETURN(value, Postfix(std::move(value)));
  if (!with_filter) return value;
  return FiltersAndTests(std::move(value));
}

absl::StatusOr<ExprPtr> ExpressionParser::Primary() {
  const Token& token = in_.current();
  Expr expr = New(ExprKind::kConstant);
  switch (token.type) {
    case TokenType::kName:
      return NameOrConstant();
    case TokenType::kString: {
      std::string text;
      // Strings side by side are one, as in Python.
      for (; in_.current().type == TokenType::kString; in_.Skip()) {
        text += in_.current().text;
      }
      expr.constant = Value::Constant(std::move(text));
      return Finish(std::move(expr));
    }
    case TokenType::kInteger:
      expr.constant = Value::Int(token.integer);
      in_.Skip();
      return Finish(std::move(expr));
    case TokenType::kFloat:
      expr.constant = Value::Float(token.number);
      in_.Skip();
      return Finish(std::move(expr));
    case TokenType::kOperator:
      break;
    case TokenType::kData:
    case TokenType::kVariableBegin:
    case TokenType::kVariableEnd:
    case TokenType::kBlockBegin:
    case TokenType::kBlockEnd:
    case TokenType::kEnd:
      return in_.Unexpected("an expression");
  }
  if (in_.SkipOperator("(")) {
    BATON_ASSIGN_OR_RETURN(
        ExprPtr inner, TupleOrExpression(/*with_condition=*/true, /*ends=*/{},
                                         /*in_parentheses=*/true));
    BATON_RETURN_IF_ERROR(in_.ExpectOperator(")"));
    return inner;
  }
  if (token.IsOperator("[")) return ListLiteral();
  if (token.IsOperator("{")) return DictLiteral();
  return in_.Unexpected("an expression");
}

absl::StatusOr<ExprPtr> ExpressionParser::NameOrConstant() {
  const std::string& text = in_.current().text;
  Expr expr = New(ExprKind::kConstant);
  if (text == "true" || text == "True") {
    expr.constant = Value::Bool(true);
  } else if (text == "false" || text == "False") {
    expr.constant = Value::Bool(false);
  } else if (text == "none" || text == "None") {
    expr.constant = Value::None();
  } else {
    expr.kind = ExprKind::kName;
    expr.name = names_.Intern(text);
    for (SpecialUse& use : uses_) {
      use.loop |= expr.name == Names::kLoop;
      use.caller |= expr.name == Names::kCaller;
      use.varargs |= expr.name == Names::kVarargs;
      use.kwargs |= expr.name == Names::kKwargs;
    }
  }
  in_.Skip();
  return Finish(std::move(expr));
}

absl::StatusOr<ExprPtr> ExpressionParser::TupleOrExpression(
    bool with_condition, absl::Span<const absl::string_view> ends,
    bool in_parentheses) {
  const auto is_end = [&] {
    const Token& token = in_.current();
    return token.type == TokenType::kVariableEnd ||
           token.type == TokenType::kBlockEnd || token.IsOperator(")") ||
           std::any_of(ends.begin(), ends.end(), [&](absl::string_view end) {
             return token.IsName(end);
           });
  };
  Expr tuple = New(ExprKind::kTuple);
  bool is_tuple = false;
  while (true) {
    if (!tuple.parts.empty()) BATON_RETURN_IF_ERROR(in_.ExpectOperator(","));
    if (is_end()) break;
    BATON_ASSIGN_OR_RETURN(ExprPtr part, with_condition ? Expression() : Or());
    tuple.parts.push_back(std::move(part));
    if (!in_.current().IsOperator(",")) break;
    is_tuple = true;
  }
  if (!is_tuple) {
    if (!tuple.parts.empty()) {
      ExprPtr only = std::move(tuple.parts[0]);
      return only;
    }
    if (!in_parentheses) return in_.Unexpected("an expression");
  }
  return Finish(std::move(tuple));
}

absl::StatusOr<ExprPtr> ExpressionParser::ListLiteral() {
  Expr list = New(ExprKind::kList);
  in_.Skip();
  while (!in_.current().IsOperator("]")) {
    if (!list.parts.empty()) {
      BATON_RETURN_IF_ERROR(in_.ExpectOperator(","));
      if (in_.current().IsOperator("]")) break;
    }
    BATON_ASSIGN_OR_RETURN(ExprPtr part, Expression());
    list.parts.push_back(std::move(part));
  }
  BATON_RETURN_IF_ERROR(in_.ExpectOperator("]"));
  return Finish(std::move(list));
}

absl::StatusOr<ExprPtr> ExpressionParser::DictLiteral() {
  Expr dict = New(ExprKind::kDict);
  in_.Skip();
  while (!in_.current().IsOperator("}")) {
    if (!dict.parts.empty()) {
      BATON_RETURN_IF_ERROR(in_.ExpectOperator(","));
      if (in_.current().IsOperator("}")) break;
    }
    BATON_ASSIGN_OR_RETURN(ExprPtr key, Expression());
    BATON_RETURN_IF_ERROR(in_.ExpectOperator(":"));
    BATON_ASSIGN_OR_RETURN(ExprPtr value, Expression());
    dict.parts.push_back(std::move(key));
    dict.parts.push_back(std::move(value));
  }
  BATON_RETURN_IF_ERROR(in_.ExpectOperator("}"));
  return Finish(std::move(dict));
}

absl::StatusOr<ExprPtr> ExpressionParser::Postfix(ExprPtr value) {
  while (true) {
    if (in_.current().IsOperator(".") || in_.current().IsOperator("[")) {
      BATON_ASSIGN_OR_RETURN(value, Subscript(std::move(value)));
    } else if (in_.current().IsOperator("(")) {
      BATON_ASSIGN_OR_RETURN(value, Call(std::move(value)));
    } else {
      return value;
    }
  }
}

absl::StatusOr<ExprPtr> ExpressionParser::FiltersAndTests(ExprPtr value) {
  while (true) {
    if (in_.current().IsOperator("|")) {
      BATON_ASSIGN_OR_RETURN(value,
                             Filters(std::move(value), /*is_inline=*/false));
    } else if (in_.current().IsName("is")) {
      BATON_ASSIGN_OR_RETURN(value, Test(std::move(value)));
    } else if (in_.current().IsOperator("(")) {
      BATON_ASSIGN_OR_RETURN(value, Call(std::move(value)));
    } else {
      return value;
    }
  }
}

}  // namespace baton::router::jinja
