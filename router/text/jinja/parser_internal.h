// The parser's parts; for parser*.cc only.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "router/text/jinja/ast.h"
#include "router/text/jinja/lexer.h"

namespace baton::router::jinja {

// Reads tokens from left to right. The last one is kEnd and stays.
class TokenReader final {
 public:
  explicit TokenReader(std::vector<Token> tokens)
      : tokens_(std::move(tokens)) {}

  const Token& current() const { return tokens_[at_]; }
  const Token& next() const {
    return tokens_[at_ + 1 < tokens_.size() ? at_ + 1 : at_];
  }
  void Skip() {
    if (at_ + 1 < tokens_.size()) ++at_;
  }
  int line() const { return current().line; }

  bool SkipName(absl::string_view name);
  bool SkipOperator(absl::string_view symbol);
  absl::Status ExpectOperator(absl::string_view symbol);
  absl::Status Expect(TokenType type, absl::string_view what);
  absl::StatusOr<std::string> ExpectName(absl::string_view what);

  absl::Status Fail(absl::string_view what) const {
    return SourceError(line(), what);
  }
  // "unexpected ..., expected `what`".
  absl::Status Unexpected(absl::string_view what) const;

 private:
  std::vector<Token> tokens_;
  size_t at_ = 0;
};

// Which special names a macro or loop that is being parsed reads.
struct SpecialUse {
  bool loop = false;
  bool caller = false;
  bool varargs = false;
  bool kwargs = false;
};

// How deeply the parser has gone down, for both of its halves.
class Nesting final {
 public:
  Nesting(int* depth, const TokenReader& reader);
  ~Nesting() { --depth_; }
  Nesting(const Nesting&) = delete;
  Nesting& operator=(const Nesting&) = delete;
  const absl::Status& status() const { return status_; }

 private:
  int& depth_;
  absl::Status status_;
};

class ExpressionParser final {
 public:
  ExpressionParser(TokenReader* reader, Names* names, int* depth,
                   std::vector<SpecialUse>* uses)
      : in_(*reader), names_(*names), depth_(*depth), uses_(*uses) {}

  absl::StatusOr<ExprPtr> Expression();
  // Without "a if b else c" at its top.
  absl::StatusOr<ExprPtr> OrExpression() { return Or(); }
  // One expression or, with commas, a tuple, up to the tag's end or a name in
  // `ends`.
  absl::StatusOr<ExprPtr> TupleOrExpression(
      bool with_condition = true, absl::Span<const absl::string_view> ends = {},
      bool in_parentheses = false);
  // "|a|b(1)" behind `value`; with `is_inline`, "a|b(1)".
  absl::StatusOr<ExprPtr> Filters(ExprPtr value, bool is_inline);

 private:
  absl::StatusOr<ExprPtr> Or();
  absl::StatusOr<ExprPtr> And();
  absl::StatusOr<ExprPtr> Not();
  absl::StatusOr<ExprPtr> Comparison();
  absl::StatusOr<ExprPtr> Sum();
  absl::StatusOr<ExprPtr> Concatenation();
  absl::StatusOr<ExprPtr> Product();
  absl::StatusOr<ExprPtr> Power();
  absl::StatusOr<ExprPtr> Unary(bool with_filter);
  absl::StatusOr<ExprPtr> Primary();
  absl::StatusOr<ExprPtr> NameOrConstant();
  absl::StatusOr<ExprPtr> ListLiteral();
  absl::StatusOr<ExprPtr> DictLiteral();
  absl::StatusOr<ExprPtr> Postfix(ExprPtr value);
  absl::StatusOr<ExprPtr> FiltersAndTests(ExprPtr value);
  absl::StatusOr<ExprPtr> Subscript(ExprPtr value);
  absl::StatusOr<ExprPtr> SubscriptPart();
  absl::StatusOr<ExprPtr> Call(ExprPtr value);
  absl::StatusOr<ExprPtr> Test(ExprPtr value);
  absl::Status CallArguments(Expr* call);
  absl::StatusOr<std::string> DottedName();

  Expr New(ExprKind kind) const;
  // Takes the node's depth, which has a bound.
  absl::StatusOr<ExprPtr> Finish(Expr expr) const;
  absl::StatusOr<ExprPtr> Binary(BinaryOp op, int line, ExprPtr left,
                                 ExprPtr right) const;

  TokenReader& in_;
  Names& names_;
  int& depth_;
  std::vector<SpecialUse>& uses_;
};

}  // namespace baton::router::jinja
