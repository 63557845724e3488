// What guesses at streams' next tokens are worth (scheduling/drafter.h). Run by
// hand, on an otherwise idle machine:
//
//   draft_benchmark [--model models/stories] [--threads 0] [--rounds 7]
//                   [--draft-tokens 8] [--weights auto] [--draft-weights int4]
//                   [--draft-when always]
//
// "Cost": a step in which 1, 4 or 16 streams of 512 tokens have so many guesses
// each, next to one without, in ms and as a ratio; medians of --rounds times
// five steps that take turns. With --draft-weights then the steps of such
// weights, which guess by the model itself.
//
// "Texts", where the model has a tokenizer: answers of 256 tokens, with guesses
// and without, by the decode worker's own scheduler and what it has learned of
// the cost of steps, in turns; tokens per second of both (medians of --rounds),
// their ratio, tokens per step, and which share of the guesses came true. The
// last is JSON that a schema describes, whose masks were found in a round
// before. The answers are compared: any difference ends the program.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/log.h"
#include "engine/engine_factory.h"
#include "router/output_format/response_grammars.h"
#include "router/text/tokenizer.h"
#include "scheduling/block_pool.h"
#include "scheduling/decode_scheduler.h"
#include "scheduling/output_guide.h"
#include "scheduling/sequence.h"
#include "scheduling/step_cost.h"
#include "scheduling/vocabulary.h"

namespace baton {
namespace {

using scheduling::DecodeScheduler;
using scheduling::PlannedSequence;
using scheduling::Sequence;
using scheduling::StepPlan;

constexpr int32_t kContext = 512;
constexpr int32_t kAnswer = 256;

// A list of four things that are described alike.
constexpr char kSchema[] = R"({
  "type": "object",
  "properties": {"children": {"type": "array", "minItems": 4, "maxItems": 4,
    "items": {
      "type": "object",
      "properties": {
        "name": {"type": "string", "maxLength": 10},
        "age": {"type": "integer", "minimum": 1, "maximum": 12},
        "favourite_toy": {"enum": ["ball", "doll", "train"]}
      },
      "required": ["name", "age", "favourite_toy"],
      "additionalProperties": false}}},
  "required": ["children"],
  "additionalProperties": false
})";

struct Flags {
  std::string model = "models/stories";
  std::string weights = "auto";
  std::string draft_weights;
  int threads = 0;
  int rounds = 7;
  int drafts = 8;
  bool always = false;
};

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

std::unique_ptr<engine::Engine> Load(const Flags& flags) {
  auto engine = engine::CreateEngine({.model_dir = flags.model,
                                      .num_threads = flags.threads,
                                      .kv_memory_bytes = int64_t{1} << 30,
                                      .weights = flags.weights,
                                      .draft_weights = flags.draft_weights});
  CHECK(engine.ok()) << engine.status();
  return *std::move(engine);
}

// Seconds of a step in which each of `streams` has `drafts` guesses; or of one
// that guesses.
constexpr int32_t kGuesses = -1;
double StepSeconds(engine::Engine& engine, int32_t streams, int32_t drafts) {
  static const scheduling::SamplingParams greedy;
  const int32_t context = std::min(kContext, engine.model().max_position - 32);
  const std::vector<TokenId> history(static_cast<size_t>(context), 1);
  const int32_t blocks = engine.kv_layout().BlocksFor(context + 32);
  std::vector<std::vector<BlockId>> tables(static_cast<size_t>(streams));
  StepPlan plan;
  plan.draft = std::exchange(drafts, std::max(0, drafts)) == kGuesses;
  const std::vector<TokenId> tokens(static_cast<size_t>(1 + drafts), 1);
  for (int32_t i = 0; i < streams; ++i) {
    for (int32_t b = 0; b < blocks; ++b) tables[i].push_back(i * blocks + b);
    plan.sequences.push_back({.sequence = SequenceId{uint64_t(i)},
                              .tokens = tokens,
                              .first_position = context - 1,
                              .blocks = tables[i],
                              .sample = true,
                              .num_drafts = drafts,
                              .sampling = &greedy,
                              .history = history,
                              .prompt_length = 1});
  }
  const absl::Time started = absl::Now();
  for (int i = 0; i < 5; ++i) engine.Execute(plan, [](int32_t) {});
  return absl::ToDoubleSeconds(absl::Now() - started) / 5;
}

void MeasureCost(engine::Engine& engine, const Flags& flags) {
  printf("| streams | guesses | ms | of none |\n| --: | --: | --: | --: |\n");
  std::vector<int32_t> counts = {0, 1, 2, 4, 8};
  if (engine.has_draft_weights()) counts.push_back(kGuesses);
  for (const int32_t streams : {1, 4, 16}) {
    std::vector<std::vector<double>> seconds(counts.size());
    for (int round = 0; round < flags.rounds; ++round) {
      for (size_t i = 0; i < counts.size(); ++i) {
        seconds[i].push_back(StepSeconds(engine, streams, counts[i]));
      }
    }
    const double none = Median(seconds[0]);
    for (size_t i = 0; i < counts.size(); ++i) {
      const double median = Median(seconds[i]);
      const std::string what =
          counts[i] == kGuesses ? flags.draft_weights : absl::StrCat(counts[i]);
      printf("| %d | %s | %.2f | %.2f |\n", streams, what.c_str(), median * 1e3,
             median / none);
    }
  }
}

// One way to run answers, with what it learns.
struct Way {
  int32_t drafts = 0;
  bool always = false;
  scheduling::StepCostModel cost;
  scheduling::StepCostModel draft_cost;
  int64_t draft_steps = 0;
  std::vector<double> per_second;
  int64_t tokens = 0, steps = 0, checked = 0, right = 0;
  std::vector<std::vector<TokenId>> answers;
  std::shared_ptr<scheduling::OutputGuide> guide;  // null: any text

  // As the decode worker's loop does.
  void Guess(engine::Engine& engine, DecodeScheduler& scheduler) {
    scheduler.BeginGuesses({.cost = cost.cost()});
    while (true) {
      const StepPlan plan = scheduler.NextGuesses(
          {.cost = cost.cost()},
          draft_steps < 8 ? scheduling::StepCost() : draft_cost.cost());
      if (plan.sequences.empty()) return;
      const absl::Time started = absl::Now();
      scheduler.TakeGuesses(engine.Execute(plan, [](int32_t) {}));
      draft_cost.Observe(scheduling::ShapeOf(plan),
                         absl::ToDoubleSeconds(absl::Now() - started));
      if (draft_steps++ < 8) return;
    }
  }

  // The answers to `prompts`, all at once.
  void Run(engine::Engine& engine,
           const std::vector<std::vector<TokenId>>& prompts,
           float temperature) {
    const int32_t block_size = engine.kv_layout().block_size;
    scheduling::BlockPool pool(engine.kv_layout().num_blocks);
    DecodeScheduler scheduler({.block_size = block_size,
                               .max_drafts = drafts,
                               .always_drafts = always});
    std::vector<std::unique_ptr<Sequence>> sequences;
    for (size_t i = 0; i < prompts.size(); ++i) {
      sequences.push_back(std::make_unique<Sequence>(
          SequenceId{i}, prompts[i], static_cast<int32_t>(prompts[i].size()),
          scheduling::SamplingParams{.temperature = temperature, .seed = i},
          scheduling::StopParams{.max_output_tokens = kAnswer}));
      sequences[i]->blocks() = *pool.Allocate(
          engine.kv_layout().BlocksFor(sequences[i]->MaxComputed()));
      if (guide != nullptr) CHECK(sequences[i]->Guide(guide).ok());
      scheduler.Add(sequences[i].get());
    }
    double seconds = 0;
    int64_t said = 0;
    while (scheduler.num_running() > 0) {
      const bool prompts_wait = scheduler.NumPrompts() > 0;
      const absl::Time turn_started = absl::Now();
      if (drafts > 0 && engine.has_draft_weights()) Guess(engine, scheduler);
      const StepPlan plan = scheduler.Plan({.cost = cost.cost()});
      const absl::Time started = absl::Now();
      const scheduling::StepResult result =
          engine.Execute(plan, [](int32_t) {});
      const double took = absl::ToDoubleSeconds(absl::Now() - started);
      cost.Observe(scheduling::ShapeOf(plan), took);
      int64_t came = 0;
      size_t next = 0;
      for (const PlannedSequence& planned : plan.sequences) {
        Sequence& sequence = *sequences[size_t(planned.sequence)];
        const auto* const sampled = &result.sampled[next];
        next += planned.num_samples();
        int32_t taken = 0;
        if (planned.num_drafts > 0) {
          taken = sequence.JudgeDrafts(
              planned, {sampled, static_cast<size_t>(planned.num_samples())});
          checked += planned.num_drafts;
          right += taken;
        }
        sequence.CommitComputed(static_cast<int32_t>(planned.tokens.size()) -
                                planned.num_drafts);
        if (!planned.sample) continue;
        for (int32_t i = 0; i <= taken; ++i) {
          if (i > 0) sequence.CommitComputed(1);
          sequence.CommitSampled(sampled[i].token);
          ++came;
          if (sequence.finished().has_value()) break;
        }
        if (sequence.finished().has_value()) scheduler.Remove(sequence.id());
      }
      if (prompts_wait) continue;
      seconds += absl::ToDoubleSeconds(absl::Now() - turn_started);
      said += came;
      ++steps;
      tokens += came;
    }
    per_second.push_back(static_cast<double>(said) / seconds);
    answers.clear();
    for (const auto& sequence : sequences)
      answers.push_back(sequence->tokens());
  }
};

std::shared_ptr<scheduling::OutputGuide> MakeGuide(
    const router::Tokenizer& tokenizer, int32_t vocab_size) {
  v1::ResponseFormat format;
  format.set_json_schema(kSchema);
  const auto grammar = router::MakeGrammar(format);
  CHECK(grammar.ok()) << grammar.status();
  std::vector<std::string> texts;
  for (TokenId token = 0; token < tokenizer.vocab_size(); ++token) {
    texts.push_back(tokenizer.IsSpecial(token) ? ""
                                               : tokenizer.TokenBytes(token));
  }
  auto guide = scheduling::OutputGuide::Make(
      **grammar,
      std::make_shared<const scheduling::Vocabulary>(std::move(texts)),
      vocab_size);
  CHECK(guide.ok()) << guide.status();
  return *std::move(guide);
}

void MeasureTexts(engine::Engine& engine, const Flags& flags) {
  auto tokenizer = router::Tokenizer::Load(flags.model);
  if (!tokenizer.ok()) {
    printf("\nno texts: %s\n", tokenizer.status().ToString().c_str());
    return;
  }
  const std::string story =
      "Once upon a time there was a little dog named Max. Max liked to play "
      "with his red ball in the park. One day the red ball rolled into the "
      "pond. Max was sad. A kind duck pushed the red ball back. ";
  const struct {
    const char* name;
    std::string prompt;
    float temperature;
    bool guided = false;
  } kTexts[] = {
      {"a story, greedy", "Once upon a time", 0},
      {"a story, sampled at 1", "Once upon a time", 1},
      {"a story told again", story + story + "Once upon a time there was", 0},
      {"JSON of a schema, sampled at 0.7", "There were four children.", 0.7f,
       true},
  };
  printf(
      "\n| text | streams | tokens/s | with guesses | ratio | tokens a step | "
      "came true |\n| --- | --: | --: | --: | --: | --: | --: |\n");
  for (const auto& text : kTexts) {
    const auto prompt = (*tokenizer)->Encode(text.prompt);
    CHECK(prompt.ok()) << prompt.status();
    for (const int32_t streams : {1, 4, 16}) {
      const std::vector<std::vector<TokenId>> prompts(
          static_cast<size_t>(streams), *prompt);
      Way without, with;
      with.drafts = flags.drafts;
      with.always = flags.always;
      if (text.guided) {
        without.guide = MakeGuide(**tokenizer, engine.model().vocab_size);
        with.guide = MakeGuide(**tokenizer, engine.model().vocab_size);
        Way(without).Run(engine, prompts, text.temperature);
        Way(with).Run(engine, prompts, text.temperature);
      }
      for (int round = 0; round < flags.rounds; ++round) {
        without.Run(engine, prompts, text.temperature);
        with.Run(engine, prompts, text.temperature);
        CHECK(with.answers == without.answers) << "answers differ";
      }
      const double before = Median(without.per_second);
      const double after = Median(with.per_second);
      printf("| %s | %d | %.0f | %.0f | **%.2f** | %.2f | %.2f |\n", text.name,
             streams, before, after, after / before,
             static_cast<double>(with.tokens) /
                 static_cast<double>(with.steps * streams),
             with.checked == 0 ? 0
                               : static_cast<double>(with.right) /
                                     static_cast<double>(with.checked));
    }
  }
}

int Main(int argc, char** argv) {
  Flags flags;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string flag = argv[i];
    const std::string value = argv[i + 1];
    if (flag == "--model") {
      flags.model = value;
    } else if (flag == "--weights") {
      flags.weights = value;
    } else if (flag == "--draft-when") {
      flags.always = value == "always";
    } else if (flag == "--draft-weights") {
      flags.draft_weights = value;
    } else if (flag == "--threads") {
      flags.threads = std::atoi(value.c_str());
    } else if (flag == "--rounds") {
      flags.rounds = std::max(1, std::atoi(value.c_str()));
    } else if (flag == "--draft-tokens") {
      flags.drafts = std::clamp(std::atoi(value.c_str()), 0, 16);
    } else {
      fprintf(stderr, "no such flag: %s\n", argv[i]);
      return 2;
    }
  }
  const std::unique_ptr<engine::Engine> engine = Load(flags);
  setvbuf(stdout, nullptr, _IOLBF, 0);
  printf("%s, %s\n\n", flags.model.c_str(), engine->backend_name().c_str());
  MeasureCost(*engine, flags);
  MeasureTexts(*engine, flags);
  return 0;
}

}  // namespace
}  // namespace baton

int main(int argc, char** argv) { return baton::Main(argc, argv); }
