// What clients say that their answers are to be, and what routers say of it to
// workers. The first byte says which: a JSON schema, a regular expression, a
// choice, or a grammar as it comes over the wire. Of what is taken, answers are
// walked: no place of one is a dead end.
#include <memory>

#include "baton/v1/inference.pb.h"
#include "baton/v1/worker.pb.h"
#include "common/log.h"
#include "router/output_format/response_grammars.h"
#include "scheduling/grammar_automaton.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/fuzz/fuzz_target.h"
#include "worker/output_guides.h"

namespace baton {
namespace {

using scheduling::GrammarAutomaton;

constexpr int kMaxSteps = 48;

void Walk(GrammarAutomaton& automaton, fuzz::FuzzInput input) {
  GrammarAutomaton::State state = automaton.start();
  for (int step = 0; step < kMaxSteps && !automaton.MustEnd(state); ++step) {
    automaton.StartWork(1 << 19);
    // The next byte from there on that may come.
    const uint8_t first = input.Byte();
    GrammarAutomaton::State next = GrammarAutomaton::kNone;
    for (int i = 0; i < 256 && next == GrammarAutomaton::kNone; ++i) {
      next = automaton.Next(state, static_cast<uint8_t>(first + i));
      if (automaton.exhausted()) return;
    }
    CHECK_NE(next, GrammarAutomaton::kNone) << "a dead end";
    state = next;
  }
  CHECK(!automaton.MustEnd(state) || automaton.MayEnd(state));
}

void FuzzFormat(const v1::ResponseFormat& format, fuzz::FuzzInput input) {
  const auto grammar = router::MakeGrammar(format);
  if (!grammar.ok()) {
    CHECK(!grammar.status().message().empty());
    return;
  }
  const auto automaton = GrammarAutomaton::Make(**grammar);
  CHECK(automaton.ok()) << automaton.status();
  Walk(**automaton, input);
}

void FuzzWire(absl::string_view bytes, fuzz::FuzzInput input) {
  v1::Grammar wire;
  if (!wire.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return;
  }
  const auto grammar = worker::FromWire(wire);
  if (!grammar.ok()) {
    CHECK(!grammar.status().message().empty());
    return;
  }
  const auto automaton = GrammarAutomaton::Make(*grammar);
  if (automaton.ok()) Walk(**automaton, input);
}

}  // namespace
}  // namespace baton

FUZZ_TARGET(output_format)(const uint8_t* data, size_t size) {
  baton::fuzz::FuzzInput input(data, size);
  const uint8_t kind = input.Byte() % 4;
  const baton::fuzz::FuzzInput walk = input;
  const std::string text = baton::fuzz::Exactly(input.Rest());
  baton::v1::ResponseFormat format;
  switch (kind) {
    case 0:
      format.set_json_schema(text);
      baton::FuzzFormat(format, walk);
      break;
    case 1:
      format.set_regex(text);
      baton::FuzzFormat(format, walk);
      break;
    case 2:
      format.mutable_choice()->add_texts(text);
      format.mutable_choice()->add_texts(text.substr(text.size() / 2));
      baton::FuzzFormat(format, walk);
      break;
    default:
      baton::FuzzWire(text, walk);
      break;
  }
  return 0;
}
