// A Jinja template's source as tokens: as Jinja2's lexer cuts it with
// trim_blocks and lstrip_blocks, white space control included.
//
// Pure; any thread.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "router/text/jinja/value.h"

namespace baton::router::jinja {

enum class TokenType {
  kData,  // text between tags
  kVariableBegin,
  kVariableEnd,
  kBlockBegin,
  kBlockEnd,
  kName,
  kString,
  kInteger,
  kFloat,
  kOperator,
  kEnd,
};

struct Token {
  TokenType type = TokenType::kEnd;
  // Of data, a name or an operator; a string's own content.
  std::string text;
  Integer integer = 0;
  double number = 0;
  int line = 1;

  bool IsName(absl::string_view name) const {
    return type == TokenType::kName && text == name;
  }
  bool IsOperator(absl::string_view symbol) const {
    return type == TokenType::kOperator && text == symbol;
  }
};

// InvalidArgument "line N: ..." for what Jinja does not read either. The last
// token is kEnd. `source` must be well-formed UTF-8.
absl::StatusOr<std::vector<Token>> Tokenize(absl::string_view source);

// "line N: what", of a template's source.
absl::Status SourceError(int line, absl::string_view what);

}  // namespace baton::router::jinja
