// What stands behind an expression: attributes, items, calls, filters, tests.

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "router/text/jinja/parser_internal.h"

namespace baton::router::jinja {
namespace {

bool BeginsTestArgument(const Token& token) {
  switch (token.type) {
    case TokenType::kName:
      return token.text != "else" && token.text != "or" && token.text != "and";
    case TokenType::kString:
    case TokenType::kInteger:
    case TokenType::kFloat:
      return true;
    case TokenType::kOperator:
      return token.text == "(" || token.text == "[" || token.text == "{";
    case TokenType::kData:
    case TokenType::kVariableBegin:
    case TokenType::kVariableEnd:
    case TokenType::kBlockBegin:
    case TokenType::kBlockEnd:
    case TokenType::kEnd:
      return false;
  }
  return false;
}

}  // namespace

absl::StatusOr<ExprPtr> ExpressionParser::Subscript(ExprPtr value) {
  Expr expr = New(ExprKind::kItem);
  expr.parts.push_back(std::move(value));
  if (in_.SkipOperator(".")) {
    const Token& token = in_.current();
    if (token.type == TokenType::kName) {
      expr.kind = ExprKind::kAttribute;
      expr.text = token.text;
      in_.Skip();
      return Finish(std::move(expr));
    }
    if (token.type != TokenType::kInteger) {
      return in_.Unexpected("a name or number");
    }
    Expr index = New(ExprKind::kConstant);
    index.constant = Value::Int(token.integer);
    in_.Skip();
    BATON_ASSIGN_OR_RETURN(ExprPtr part, Finish(std::move(index)));
    expr.parts.push_back(std::move(part));
    return Finish(std::move(expr));
  }
  BATON_RETURN_IF_ERROR(in_.ExpectOperator("["));
  Expr several = New(ExprKind::kTuple);
  while (!in_.current().IsOperator("]")) {
    if (!several.parts.empty()) BATON_RETURN_IF_ERROR(in_.ExpectOperator(","));
    BATON_ASSIGN_OR_RETURN(ExprPtr part, SubscriptPart());
    several.parts.push_back(std::move(part));
  }
  BATON_RETURN_IF_ERROR(in_.ExpectOperator("]"));
  if (several.parts.size() == 1) {
    expr.parts.push_back(std::move(several.parts[0]));
  } else {
    BATON_ASSIGN_OR_RETURN(ExprPtr tuple, Finish(std::move(several)));
    expr.parts.push_back(std::move(tuple));
  }
  return Finish(std::move(expr));
}

absl::StatusOr<ExprPtr> ExpressionParser::SubscriptPart() {
  Expr slice = New(ExprKind::kSlice);
  const auto ends = [&] {
    return in_.current().IsOperator("]") || in_.current().IsOperator(",");
  };
  if (in_.SkipOperator(":")) {
    slice.parts.push_back(nullptr);
  } else {
    BATON_ASSIGN_OR_RETURN(ExprPtr start, Expression());
    if (!in_.SkipOperator(":")) return start;
    slice.parts.push_back(std::move(start));
  }
  ExprPtr stop;
  if (!in_.current().IsOperator(":") && !ends()) {
    BATON_ASSIGN_OR_RETURN(stop, Expression());
  }
  slice.parts.push_back(std::move(stop));
  ExprPtr step;
  if (in_.SkipOperator(":") && !ends()) {
    BATON_ASSIGN_OR_RETURN(step, Expression());
  }
  slice.parts.push_back(std::move(step));
  return Finish(std::move(slice));
}

absl::StatusOr<ExprPtr> ExpressionParser::Call(ExprPtr value) {
  Expr call = New(ExprKind::kCall);
  call.parts.push_back(std::move(value));
  BATON_RETURN_IF_ERROR(CallArguments(&call));
  return Finish(std::move(call));
}

absl::Status ExpressionParser::CallArguments(Expr* call) {
  Arguments& arguments = call->arguments;
  BATON_RETURN_IF_ERROR(in_.ExpectOperator("("));
  constexpr absl::string_view kOrder =
      "arguments are in an order that Python does not know";
  bool first = true;
  while (!in_.current().IsOperator(")")) {
    if (!first) {
      BATON_RETURN_IF_ERROR(in_.ExpectOperator(","));
      if (in_.current().IsOperator(")")) break;
    }
    first = false;
    const bool any_star =
        arguments.star != nullptr || arguments.star_star != nullptr;
    if (in_.SkipOperator("*")) {
      if (any_star) return in_.Fail(kOrder);
      BATON_ASSIGN_OR_RETURN(arguments.star, Expression());
    } else if (in_.SkipOperator("**")) {
      if (arguments.star_star != nullptr) return in_.Fail(kOrder);
      BATON_ASSIGN_OR_RETURN(arguments.star_star, Expression());
    } else if (in_.current().type == TokenType::kName &&
               in_.next().IsOperator("=")) {
      if (arguments.star_star != nullptr) return in_.Fail(kOrder);
      std::string name = in_.current().text;
      for (const auto& [other, unused] : arguments.named) {
        if (other == name) {
          return in_.Fail(absl::StrCat("keyword argument repeated: ", name));
        }
      }
      in_.Skip();
      in_.Skip();
      BATON_ASSIGN_OR_RETURN(ExprPtr value, Expression());
      arguments.named.emplace_back(std::move(name), std::move(value));
    } else {
      if (any_star || !arguments.named.empty()) return in_.Fail(kOrder);
      BATON_ASSIGN_OR_RETURN(ExprPtr value, Expression());
      arguments.positional.push_back(std::move(value));
    }
  }
  return in_.ExpectOperator(")");
}

absl::StatusOr<std::string> ExpressionParser::DottedName() {
  BATON_ASSIGN_OR_RETURN(std::string name, in_.ExpectName("a name"));
  while (in_.SkipOperator(".")) {
    BATON_ASSIGN_OR_RETURN(const std::string part, in_.ExpectName("a name"));
    absl::StrAppend(&name, ".", part);
  }
  return name;
}

absl::StatusOr<ExprPtr> ExpressionParser::Filters(ExprPtr value,
                                                  bool is_inline) {
  while (is_inline || in_.current().IsOperator("|")) {
    if (!is_inline) in_.Skip();
    is_inline = false;
    Expr filter = New(ExprKind::kFilter);
    BATON_ASSIGN_OR_RETURN(filter.text, DottedName());
    if (in_.current().IsOperator("(")) {
      BATON_RETURN_IF_ERROR(CallArguments(&filter));
    }
    filter.parts.push_back(std::move(value));
    BATON_ASSIGN_OR_RETURN(value, Finish(std::move(filter)));
  }
  return value;
}

absl::StatusOr<ExprPtr> ExpressionParser::Test(ExprPtr value) {
  Expr test = New(ExprKind::kTest);
  in_.Skip();
  Expr negation = New(ExprKind::kNot);
  const bool is_negated = in_.SkipName("not");
  BATON_ASSIGN_OR_RETURN(test.text, DottedName());
  if (in_.current().IsOperator("(")) {
    BATON_RETURN_IF_ERROR(CallArguments(&test));
  } else if (BeginsTestArgument(in_.current())) {
    if (in_.current().IsName("is")) {
      return in_.Fail("You cannot chain multiple tests with is");
    }
    BATON_ASSIGN_OR_RETURN(ExprPtr argument, Primary());
    BATON_ASSIGN_OR_RETURN(argument, Postfix(std::move(argument)));
    test.arguments.positional.push_back(std::move(argument));
  }
  test.parts.push_back(std::move(value));
  BATON_ASSIGN_OR_RETURN(ExprPtr result, Finish(std::move(test)));
  if (!is_negated) return result;
  negation.parts.push_back(std::move(result));
  return Finish(std::move(negation));
}

}  // namespace baton::router::jinja
