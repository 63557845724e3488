#include "router/text/jinja/parser.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status_macros.h"
#include "router/text/jinja/parser_internal.h"
#include "router/text/jinja/run.h"

namespace baton::router::jinja {
namespace {

using Ends = absl::Span<const absl::string_view>;

std::string Described(const Token& token) {
  switch (token.type) {
    case TokenType::kData:
      return "text";
    case TokenType::kVariableBegin:
      return "'{{'";
    case TokenType::kVariableEnd:
      return "the end of the print statement";
    case TokenType::kBlockBegin:
      return "'{%'";
    case TokenType::kBlockEnd:
      return "the end of the statement block";
    case TokenType::kString:
      return "a string";
    case TokenType::kInteger:
    case TokenType::kFloat:
      return "a number";
    case TokenType::kName:
    case TokenType::kOperator:
      return absl::StrCat("'", token.text, "'");
    case TokenType::kEnd:
      return "the end of the template";
  }
  return "";
}

class StatementParser final {
 public:
  explicit StatementParser(std::vector<Token> tokens)
      : in_(std::move(tokens)),
        expressions_(&in_, &template_.names, &depth_, &uses_) {}

  absl::StatusOr<TemplateNode> Run() {
    BATON_ASSIGN_OR_RETURN(template_.body, ParseBody({}));
    if (in_.current().type != TokenType::kEnd) {
      return in_.Unexpected("the end of the template");
    }
    return std::move(template_);
  }

 private:
  Statement New(StatementKind kind) const {
    Statement statement;
    statement.kind = kind;
    statement.line = in_.line();
    return statement;
  }

  // Up to a tag whose name is one of `ends`; its name is then the current
  // token. Without ends: up to the end of the template.
  absl::StatusOr<Body> ParseBody(Ends ends);
  // The rest of a block's own tag and what follows, up to `ends`.
  absl::StatusOr<Body> ParseBlock(Ends ends);
  // The same up to `end`, which it reads too.
  absl::StatusOr<Body> ParseBlockTo(absl::string_view end);

  absl::StatusOr<Statement> ParseStatement();
  absl::StatusOr<Statement> ParseOutput();
  absl::StatusOr<Statement> ParsePrint();
  absl::StatusOr<Statement> ParseIf();
  absl::StatusOr<Statement> ParseFor();
  absl::StatusOr<Statement> ParseSet();
  absl::StatusOr<Statement> ParseWith();
  absl::StatusOr<Statement> ParseMacro();
  absl::StatusOr<Statement> ParseCallBlock();
  absl::StatusOr<Statement> ParseFilterBlock();
  absl::StatusOr<Statement> ParseGeneration();
  absl::StatusOr<Statement> ParseLoopControl(StatementKind kind);

  absl::StatusOr<Target> ParseTarget(bool with_namespace, bool allow_tuple,
                                     Ends ends);
  absl::StatusOr<Target> ParseSimpleTarget(bool with_namespace);
  absl::StatusOr<Target> ParseTargetTuple(bool with_namespace, Ends ends);
  absl::Status ParseSignature(MacroNode* macro);
  // The macro's body, up to `end`.
  absl::Status ParseMacroBody(MacroNode* macro, absl::string_view end);

  TokenReader in_;
  TemplateNode template_;
  int depth_ = 0;
  int loops_ = 0;  // around the current place, within its macro
  std::vector<SpecialUse> uses_;
  ExpressionParser expressions_;
};

absl::StatusOr<Body> StatementParser::ParseBody(Ends ends) {
  const Nesting nesting(&depth_, in_);
  BATON_RETURN_IF_ERROR(nesting.status());
  Body body;
  while (in_.current().type != TokenType::kEnd) {
    if (in_.current().type == TokenType::kData) {
      Statement text = New(StatementKind::kText);
      text.text = in_.current().text;
      in_.Skip();
      body.push_back(std::move(text));
    } else if (in_.current().type == TokenType::kVariableBegin) {
      BATON_ASSIGN_OR_RETURN(Statement output, ParseOutput());
      body.push_back(std::move(output));
    } else {
      BATON_RETURN_IF_ERROR(in_.Expect(TokenType::kBlockBegin, "a block"));
      const bool ended = std::any_of(
          ends.begin(), ends.end(),
          [&](absl::string_view end) { return in_.current().IsName(end); });
      if (ended) return body;
      BATON_ASSIGN_OR_RETURN(Statement statement, ParseStatement());
      BATON_RETURN_IF_ERROR(
          in_.Expect(TokenType::kBlockEnd, "the end of the statement block"));
      body.push_back(std::move(statement));
    }
  }
  if (!ends.empty()) {
    return in_.Fail(absl::StrCat("the template ends where ",
                                 absl::StrJoin(ends, " or "), " is missing"));
  }
  return body;
}

absl::StatusOr<Body> StatementParser::ParseBlock(Ends ends) {
  in_.SkipOperator(":");
  BATON_RETURN_IF_ERROR(
      in_.Expect(TokenType::kBlockEnd, "the end of the statement block"));
  return ParseBody(ends);
}

absl::StatusOr<Body> StatementParser::ParseBlockTo(absl::string_view end) {
  BATON_ASSIGN_OR_RETURN(Body body, ParseBlock(absl::MakeConstSpan(&end, 1)));
  in_.Skip();
  return body;
}

absl::StatusOr<Statement> StatementParser::ParseOutput() {
  Statement output = New(StatementKind::kOutput);
  in_.Skip();
  BATON_ASSIGN_OR_RETURN(ExprPtr expr, expressions_.TupleOrExpression());
  output.exprs.push_back(std::move(expr));
  BATON_RETURN_IF_ERROR(
      in_.Expect(TokenType::kVariableEnd, "the end of the print statement"));
  return output;
}

absl::StatusOr<Statement> StatementParser::ParseStatement() {
  if (in_.current().type != TokenType::kName) {
    return in_.Unexpected("a tag name");
  }
  const std::string name = in_.current().text;
  if (name == "if") return ParseIf();
  if (name == "for") return ParseFor();
  if (name == "set") return ParseSet();
  if (name == "macro") return ParseMacro();
  if (name == "call") return ParseCallBlock();
  if (name == "filter") return ParseFilterBlock();
  if (name == "with") return ParseWith();
  if (name == "print") return ParsePrint();
  if (name == "generation") return ParseGeneration();
  if (name == "break") return ParseLoopControl(StatementKind::kBreak);
  if (name == "continue") return ParseLoopControl(StatementKind::kContinue);
  for (const char* other :
       {"include", "import", "from", "extends", "block", "autoescape"}) {
    if (name != other) continue;
    return absl::UnimplementedError(absl::StrCat(
        "line ", in_.line(), ": the tag '", name, "' is not supported"));
  }
  return in_.Fail(absl::StrCat("encountered unknown tag '", name, "'"));
}

absl::StatusOr<Statement> StatementParser::ParsePrint() {
  Statement output = New(StatementKind::kOutput);
  in_.Skip();
  while (in_.current().type != TokenType::kBlockEnd) {
    if (!output.exprs.empty()) BATON_RETURN_IF_ERROR(in_.ExpectOperator(","));
    BATON_ASSIGN_OR_RETURN(ExprPtr expr, expressions_.Expression());
    output.exprs.push_back(std::move(expr));
  }
  return output;
}

absl::StatusOr<Statement> StatementParser::ParseIf() {
  Statement statement = New(StatementKind::kIf);
  constexpr absl::string_view kEnds[] = {"elif", "else", "endif"};
  while (true) {
    in_.Skip();  // "if" or "elif"
    BATON_ASSIGN_OR_RETURN(
        ExprPtr test, expressions_.TupleOrExpression(/*with_condition=*/false));
    BATON_ASSIGN_OR_RETURN(Body body, ParseBlock(kEnds));
    statement.branches.emplace_back(std::move(test), std::move(body));
    if (in_.current().IsName("elif")) continue;
    if (in_.SkipName("else")) {
      BATON_ASSIGN_OR_RETURN(statement.else_body, ParseBlockTo("endif"));
    } else {
      in_.Skip();  // "endif"
    }
    return statement;
  }
}

absl::StatusOr<Statement> StatementParser::ParseFor() {
  Statement loop = New(StatementKind::kFor);
  in_.Skip();
  constexpr absl::string_view kIn[] = {"in"};
  BATON_ASSIGN_OR_RETURN(loop.target, ParseTarget(/*with_namespace=*/false,
                                                  /*allow_tuple=*/true, kIn));
  if (!in_.SkipName("in")) return in_.Unexpected("'in'");
  constexpr absl::string_view kRecursive[] = {"recursive"};
  BATON_ASSIGN_OR_RETURN(ExprPtr what,
                         expressions_.TupleOrExpression(
                             /*with_condition=*/false, kRecursive));
  loop.exprs.push_back(std::move(what));
  ExprPtr filter;
  if (in_.SkipName("if")) {
    BATON_ASSIGN_OR_RETURN(filter, expressions_.Expression());
  }
  loop.exprs.push_back(std::move(filter));
  loop.recursive = in_.SkipName("recursive");
  ++loops_;
  constexpr absl::string_view kEnds[] = {"endfor", "else"};
  uses_.emplace_back();
  BATON_ASSIGN_OR_RETURN(loop.body, ParseBlock(kEnds));
  loop.uses_loop = uses_.back().loop;
  uses_.pop_back();
  --loops_;
  if (in_.SkipName("else")) {
    BATON_ASSIGN_OR_RETURN(loop.else_body, ParseBlockTo("endfor"));
  } else {
    in_.Skip();
  }
  return loop;
}

absl::StatusOr<Target> StatementParser::ParseSimpleTarget(bool with_namespace) {
  Target target;
  target.line = in_.line();
  BATON_ASSIGN_OR_RETURN(const std::string name, in_.ExpectName("a name"));
  for (const char* constant :
       {"true", "false", "none", "True", "False", "None"}) {
    if (name == constant) {
      return in_.Fail(absl::StrCat("can't assign to '", name, "'"));
    }
  }
  target.name = template_.names.Intern(name);
  if (with_namespace && in_.SkipOperator(".")) {
    target.kind = Target::Kind::kNamespace;
    BATON_ASSIGN_OR_RETURN(target.attribute, in_.ExpectName("a name"));
  }
  return target;
}

absl::StatusOr<Target> StatementParser::ParseTargetTuple(bool with_namespace,
                                                         Ends ends) {
  const Nesting nesting(&depth_, in_);
  BATON_RETURN_IF_ERROR(nesting.status());
  Target tuple;
  tuple.line = in_.line();
  tuple.kind = Target::Kind::kTuple;
  bool is_tuple = false;
  const auto is_end = [&] {
    const Token& token = in_.current();
    return token.type == TokenType::kBlockEnd || token.IsOperator(")") ||
           std::any_of(ends.begin(), ends.end(), [&](absl::string_view end) {
             return token.IsName(end);
           });
  };
  while (true) {
    if (!tuple.parts.empty()) BATON_RETURN_IF_ERROR(in_.ExpectOperator(","));
    if (is_end()) break;
    if (in_.SkipOperator("(")) {
      BATON_ASSIGN_OR_RETURN(Target inner,
                             ParseTargetTuple(with_namespace, /*ends=*/{}));
      BATON_RETURN_IF_ERROR(in_.ExpectOperator(")"));
      tuple.parts.push_back(std::move(inner));
    } else {
      BATON_ASSIGN_OR_RETURN(Target part, ParseSimpleTarget(with_namespace));
      tuple.parts.push_back(std::move(part));
    }
    if (!in_.current().IsOperator(",")) break;
    is_tuple = true;
  }
  if (tuple.parts.empty()) return in_.Unexpected("a name");
  if (is_tuple) return tuple;
  Target only = std::move(tuple.parts[0]);
  return only;
}

absl::StatusOr<Target> StatementParser::ParseTarget(bool with_namespace,
                                                    bool allow_tuple,
                                                    Ends ends) {
  BATON_ASSIGN_OR_RETURN(Target target,
                         allow_tuple ? ParseTargetTuple(with_namespace, ends)
                                     : ParseSimpleTarget(with_namespace));
  if (target.kind == Target::Kind::kName && target.name == Names::kLoop &&
      !with_namespace) {
    return in_.Fail("can't assign to the special loop variable");
  }
  return target;
}

absl::StatusOr<Statement> StatementParser::ParseSet() {
  Statement set = New(StatementKind::kSet);
  in_.Skip();
  BATON_ASSIGN_OR_RETURN(set.target,
                         ParseTarget(/*with_namespace=*/true,
                                     /*allow_tuple=*/true, /*ends=*/{}));
  if (in_.SkipOperator("=")) {
    BATON_ASSIGN_OR_RETURN(ExprPtr value, expressions_.TupleOrExpression());
    set.exprs.push_back(std::move(value));
    return set;
  }
  set.kind = StatementKind::kSetBlock;
  BATON_ASSIGN_OR_RETURN(set.filter,
                         expressions_.Filters(nullptr, /*is_inline=*/false));
  BATON_ASSIGN_OR_RETURN(set.body, ParseBlockTo("endset"));
  return set;
}

absl::StatusOr<Statement> StatementParser::ParseWith() {
  Statement with = New(StatementKind::kWith);
  in_.Skip();
  while (in_.current().type != TokenType::kBlockEnd) {
    if (!with.targets.empty()) BATON_RETURN_IF_ERROR(in_.ExpectOperator(","));
    BATON_ASSIGN_OR_RETURN(Target target,
                           ParseTarget(/*with_namespace=*/false,
                                       /*allow_tuple=*/false, /*ends=*/{}));
    BATON_RETURN_IF_ERROR(in_.ExpectOperator("="));
    BATON_ASSIGN_OR_RETURN(ExprPtr value, expressions_.Expression());
    with.targets.push_back(std::move(target));
    with.exprs.push_back(std::move(value));
  }
  BATON_ASSIGN_OR_RETURN(with.body, ParseBlockTo("endwith"));
  return with;
}

absl::Status StatementParser::ParseSignature(MacroNode* macro) {
  BATON_RETURN_IF_ERROR(in_.ExpectOperator("("));
  while (!in_.current().IsOperator(")")) {
    if (!macro->parameters.empty()) {
      BATON_RETURN_IF_ERROR(in_.ExpectOperator(","));
    }
    BATON_ASSIGN_OR_RETURN(const Target target,
                           ParseSimpleTarget(/*with_namespace=*/false));
    Parameter parameter;
    parameter.name = target.name;
    parameter.text = template_.names.TextOf(target.name);
    if (in_.SkipOperator("=")) {
      BATON_ASSIGN_OR_RETURN(parameter.fallback, expressions_.Expression());
    } else if (!macro->parameters.empty() &&
               macro->parameters.back().fallback != nullptr) {
      return in_.Fail("non-default argument follows default argument");
    }
    macro->parameters.push_back(std::move(parameter));
  }
  return in_.ExpectOperator(")");
}

absl::Status StatementParser::ParseMacroBody(MacroNode* macro,
                                             absl::string_view end) {
  uses_.emplace_back();
  const int loops = std::exchange(loops_, 0);
  absl::StatusOr<Body> body = ParseBlockTo(end);
  loops_ = loops;
  macro->uses_caller = uses_.back().caller;
  macro->uses_varargs = uses_.back().varargs;
  macro->uses_kwargs = uses_.back().kwargs;
  uses_.pop_back();
  if (!body.ok()) return body.status();
  macro->body = *std::move(body);
  return absl::OkStatus();
}

absl::StatusOr<Statement> StatementParser::ParseMacro() {
  Statement statement = New(StatementKind::kMacro);
  in_.Skip();
  auto macro = std::make_unique<MacroNode>();
  BATON_ASSIGN_OR_RETURN(const Target target,
                         ParseSimpleTarget(/*with_namespace=*/false));
  macro->name = target.name;
  macro->text = template_.names.TextOf(target.name);
  BATON_RETURN_IF_ERROR(ParseSignature(macro.get()));
  BATON_RETURN_IF_ERROR(ParseMacroBody(macro.get(), "endmacro"));
  statement.macro = std::move(macro);
  return statement;
}

absl::StatusOr<Statement> StatementParser::ParseCallBlock() {
  Statement statement = New(StatementKind::kCallBlock);
  in_.Skip();
  auto caller = std::make_unique<MacroNode>();
  caller->name = Names::kCaller;
  caller->text = "caller";
  if (in_.current().IsOperator("(")) {
    BATON_RETURN_IF_ERROR(ParseSignature(caller.get()));
  }
  BATON_ASSIGN_OR_RETURN(ExprPtr call, expressions_.Expression());
  if (call->kind != ExprKind::kCall) return in_.Fail("expected a call");
  statement.exprs.push_back(std::move(call));
  BATON_RETURN_IF_ERROR(ParseMacroBody(caller.get(), "endcall"));
  statement.macro = std::move(caller);
  return statement;
}

absl::StatusOr<Statement> StatementParser::ParseFilterBlock() {
  Statement statement = New(StatementKind::kFilterBlock);
  in_.Skip();
  BATON_ASSIGN_OR_RETURN(statement.filter,
                         expressions_.Filters(nullptr, /*is_inline=*/true));
  BATON_ASSIGN_OR_RETURN(statement.body, ParseBlockTo("endfilter"));
  return statement;
}

absl::StatusOr<Statement> StatementParser::ParseGeneration() {
  // What the assistant said, marked for training; here it is just text, in a
  // scope of its own.
  Statement statement = New(StatementKind::kScope);
  in_.Skip();
  const int loops = std::exchange(loops_, 0);
  absl::StatusOr<Body> body = ParseBlockTo("endgeneration");
  loops_ = loops;
  if (!body.ok()) return body.status();
  statement.body = *std::move(body);
  return statement;
}

absl::StatusOr<Statement> StatementParser::ParseLoopControl(
    StatementKind kind) {
  if (loops_ == 0) {
    return in_.Fail(
        absl::StrCat("'", in_.current().text, "' is outside of a loop"));
  }
  Statement statement = New(kind);
  in_.Skip();
  return statement;
}

}  // namespace

bool TokenReader::SkipName(absl::string_view name) {
  if (!current().IsName(name)) return false;
  Skip();
  return true;
}

bool TokenReader::SkipOperator(absl::string_view symbol) {
  if (!current().IsOperator(symbol)) return false;
  Skip();
  return true;
}

absl::Status TokenReader::ExpectOperator(absl::string_view symbol) {
  if (SkipOperator(symbol)) return absl::OkStatus();
  return Unexpected(absl::StrCat("'", symbol, "'"));
}

absl::Status TokenReader::Expect(TokenType type, absl::string_view what) {
  if (current().type != type) return Unexpected(what);
  Skip();
  return absl::OkStatus();
}

absl::StatusOr<std::string> TokenReader::ExpectName(absl::string_view what) {
  if (current().type != TokenType::kName) return Unexpected(what);
  std::string text = current().text;
  Skip();
  return text;
}

absl::Status TokenReader::Unexpected(absl::string_view what) const {
  return Fail(
      absl::StrCat("unexpected ", Described(current()), ", expected ", what));
}

Nesting::Nesting(int* depth, const TokenReader& reader) : depth_(*depth) {
  if (++depth_ > kMaxSourceDepth) {
    status_ = reader.Fail(absl::StrCat("the template is nested deeper than ",
                                       kMaxSourceDepth, " levels"));
  }
}

absl::StatusOr<TemplateNode> Parse(absl::string_view source) {
  BATON_ASSIGN_OR_RETURN(std::vector<Token> tokens, Tokenize(source));
  return StatementParser(std::move(tokens)).Run();
}

}  // namespace baton::router::jinja
