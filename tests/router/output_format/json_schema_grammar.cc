#include "tests/router/output_format/json_schema_grammar.h"

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "router/output_format/json_schema.h"
#include "scheduling/grammar_automaton.h"

namespace baton::router {

absl::StatusOr<scheduling::Grammar> SchemaGrammar(const std::string& schema) {
  scheduling::GrammarBuilder builder;
  const scheduling::GrammarBuilder::Rule rule = builder.NewRule();
  const absl::Status written = WriteJsonSchema(schema, rule, &builder);
  if (!written.ok()) return written;
  scheduling::Grammar grammar;
  const absl::Status built = builder.Build(&grammar);
  EXPECT_TRUE(built.ok()) << built << " " << schema;
  const absl::Status valid = scheduling::Validate(grammar);
  EXPECT_TRUE(valid.ok()) << valid << " " << schema;
  return grammar;
}

bool Allows(const std::string& schema, const std::string& text) {
  const auto grammar = SchemaGrammar(schema);
  EXPECT_TRUE(grammar.ok()) << grammar.status() << " " << schema;
  if (!grammar.ok()) return false;
  const absl::StatusOr<bool> matches = scheduling::Matches(*grammar, text);
  EXPECT_TRUE(matches.ok()) << matches.status() << " " << schema;
  return matches.ok() && *matches;
}

void ExpectAllows(const std::string& schema,
                  const std::vector<std::string>& allowed,
                  const std::vector<std::string>& others) {
  for (const std::string& text : allowed) {
    EXPECT_TRUE(Allows(schema, text)) << schema << "\n" << text;
  }
  for (const std::string& text : others) {
    EXPECT_FALSE(Allows(schema, text)) << schema << "\n" << text;
  }
}

std::string Refusal(const std::string& schema) {
  const absl::Status status = SchemaGrammar(schema).status();
  if (status.ok()) return "";
  return absl::StrCat(absl::StatusCodeToString(status.code()), " ",
                      status.message());
}

}  // namespace baton::router
