// What it costs to keep answers to a grammar, per token, beside a step of the
// model: with a real vocabulary, and answers of random tokens that the grammar
// allows. Run by hand:
//
//   output_guide_benchmark [TOKENIZER_DIR ...]
//
// Without arguments, the vocabularies that tests use (128K tokens of Llama 3.1,
// 152K of Qwen 3, 32K of Mistral). For each format:
//   grammar   from the schema to the grammar, once per request at most (ms)
//   tree      the vocabulary's, once per router (ms)
//   first     per token of the first answer with this grammar: masks are found
//   later     per token of the 30 answers after it (other random tokens)
//             (us: median, 99 %, most)
//   masks, states: how many were found
#include <algorithm>
#include <cstdio>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/log.h"
#include "router/output_format/response_grammars.h"
#include "router/text/tokenizer.h"
#include "scheduling/output_guide.h"

namespace baton {
namespace {

using scheduling::GuidedOutput;
using scheduling::OutputGuide;
using scheduling::Vocabulary;

constexpr int kLater = 30;
constexpr size_t kMaxTokens = 300;

constexpr char kPerson[] = R"({"type": "object", "properties": {
  "name": {"type": "string"},
  "email": {"type": "string", "format": "email"},
  "age": {"type": "integer", "minimum": 0, "maximum": 150},
  "kind": {"enum": ["customer", "supplier", "employee"]},
  "tags": {"type": "array", "items": {"type": "string", "maxLength": 20}},
  "address": {"type": "object", "properties": {
      "street": {"type": "string"}, "city": {"type": "string"},
      "zip": {"type": "string", "pattern": "^[0-9]{5}$"}},
    "required": ["street", "city", "zip"], "additionalProperties": false}},
  "required": ["name", "email", "age", "kind", "tags", "address"],
  "additionalProperties": false})";

struct Times {
  std::vector<double> us;
  void Add(absl::Duration time) {
    us.push_back(absl::ToDoubleMicroseconds(time));
  }
  std::string Text() {
    std::sort(us.begin(), us.end());
    const auto at = [&](double share) {
      return us[static_cast<size_t>(share *
                                    static_cast<double>(us.size() - 1))];
    };
    char text[80];
    snprintf(text, sizeof text, "%8.1f %8.1f %8.1f", at(0.5), at(0.99), at(1));
    return text;
  }
};

// One answer of random tokens.
void Answer(const std::shared_ptr<OutputGuide>& guide, TokenId end,
            std::mt19937& random, Times* times) {
  GuidedOutput output(guide);
  std::vector<TokenId> tokens;
  const std::vector<TokenId> stop = {end};
  while (tokens.size() < kMaxTokens) {
    const absl::Time started = absl::Now();
    const auto next = output.Follow(tokens, stop, true, nullptr);
    times->Add(absl::Now() - started);
    CHECK(next.ok()) << next.status();
    if (*next == GuidedOutput::Next::kComplete) return;
    const std::vector<TokenId> allowed = output.allowed()->Tokens();
    const TokenId token = allowed[random() % allowed.size()];
    if (token == end) return;
    tokens.push_back(token);
  }
}

void Run(const char* name, const v1::ResponseFormat& format,
         const std::shared_ptr<const Vocabulary>& vocabulary, TokenId end) {
  absl::Time started = absl::Now();
  const auto grammar = router::MakeGrammar(format);
  CHECK(grammar.ok()) << grammar.status();
  const double grammar_ms = absl::ToDoubleMilliseconds(absl::Now() - started);
  auto made = OutputGuide::Make(**grammar, vocabulary, vocabulary->size() + 1);
  CHECK(made.ok()) << made.status();
  const std::shared_ptr<OutputGuide> guide = *std::move(made);
  std::mt19937 random(1);
  Times first;
  Answer(guide, end, random, &first);
  Times later;
  for (int i = 0; i < kLater; ++i) Answer(guide, end, random, &later);
  printf("  %-12s %8.2f   %s   %s %6lld %7d\n", name, grammar_ms,
         first.Text().c_str(), later.Text().c_str(),
         static_cast<long long>(guide->masks_found()),
         guide->automaton().num_states());
}

void RunAll(const std::string& dir) {
  const auto tokenizer = router::Tokenizer::Load(dir);
  CHECK(tokenizer.ok()) << tokenizer.status();
  const auto size = static_cast<TokenId>((*tokenizer)->vocab_size());
  std::vector<std::string> texts;
  for (TokenId token = 0; token < size; ++token) {
    texts.push_back(
        (*tokenizer)->IsSpecial(token) ? "" : (*tokenizer)->TokenBytes(token));
  }
  const absl::Time started = absl::Now();
  const auto vocabulary = std::make_shared<const Vocabulary>(std::move(texts));
  printf("%s: %d tokens, %zu nodes, tree %.1f ms\n", dir.c_str(),
         vocabulary->size(), vocabulary->nodes().size(),
         absl::ToDoubleMilliseconds(absl::Now() - started));
  printf("  %-12s %8s   %26s   %26s %6s %7s\n", "", "grammar",
         "first: p50, p99, max us", "later: p50, p99, max us", "masks",
         "states");
  v1::ResponseFormat format;
  format.mutable_json_object();
  Run("json_object", format, vocabulary, size);
  format.set_json_schema(kPerson);
  Run("json_schema", format, vocabulary, size);
  format.set_regex("[A-Z][a-z]+( [A-Z][a-z]+){1,4}, [0-9]{4}-[0-9]{2}");
  Run("regex", format, vocabulary, size);
  for (int i = 0; i < 1000; ++i) {
    format.mutable_choice()->add_texts(absl::StrCat("category ", i * 7919));
  }
  Run("choice", format, vocabulary, size);
}

}  // namespace
}  // namespace baton

int main(int argc, char** argv) {
  baton::InitLogging(argv[0]);
  std::vector<std::string> dirs(argv + 1, argv + argc);
  if (dirs.empty()) {
    for (const char* name : {"llama-3.1", "qwen3", "mistral"}) {
      dirs.push_back(
          absl::StrCat(BATON_BINARY_DIR, "/tests/data/tokenizers/", name));
    }
  }
  for (const std::string& dir : dirs) baton::RunAll(dir);
  return 0;
}
