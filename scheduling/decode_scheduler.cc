#include "scheduling/decode_scheduler.h"

#include <algorithm>

#include "common/log.h"

namespace baton::scheduling {
DecodeScheduler::DecodeScheduler(const DecodeSchedulerOptions& options)
    : options_(options),
      prompts_(options.patience),
      ramp_(std::min(2 * kLeastChunk, options.token_budget),
            options.token_budget) {
  CHECK_GE(options_.token_budget, 1);
  CHECK_GE(options_.block_size, 1);
  CHECK_GE(options_.itl_target_seconds, 0);
  CHECK_GE(options_.max_drafts, 0);
}

void DecodeScheduler::Add(Sequence* sequence, double now) {
  CHECK(!sequence->finished().has_value());
  CHECK_GE(sequence->uncomputed(), 1);
  CHECK(HasBlocks(*sequence));
  running_.push_back(sequence);
  beginnings_.emplace_back();
  if (sequence->uncomputed() > 1) {
    prompts_.Add(sequence, now, sequence->cached());
  } else if (sequence->num_output() > 0) {
    beginnings_.back() = {now, sequence->num_output()};
  }
}

void DecodeScheduler::Remove(SequenceId id) {
  const auto it = std::find_if(running_.begin(), running_.end(),
                               [id](Sequence* s) { return s->id() == id; });
  if (it == running_.end()) return;
  beginnings_.erase(beginnings_.begin() + (it - running_.begin()));
  running_.erase(it);
  prompts_.Remove(id);
}

StepPlan DecodeScheduler::Plan(const StepOutlook& outlook) {
  StepPlan plan;
  mixed_ = MixedStep();
  last_shape_ = StepShape();
  if (running_.empty()) return plan;
  prompts_.RemoveStreams();
  MarkStreams(outlook.now);
  PlanStreams(outlook, &plan);
  const int64_t streams = plan.NumTokens();
  PlanPrompts(outlook, &plan);
  ramp_.Planned(static_cast<int32_t>(plan.NumTokens() - streams));
  last_shape_ = ShapeOf(plan);
  return plan;
}

void DecodeScheduler::RanAhead(double now, const StepShape& shape) {
  MarkStreams(now);
  ramp_.Planned(0);
  last_shape_ = shape;
}

StepShape DecodeScheduler::StreamsAlone(int32_t budget) const {
  StepShape shape;
  if (options_.max_drafts == 0 || !prompts_.empty()) return shape;
  for (const Sequence* sequence : running_) {
    shape += ChunkShape(sequence->computed(), 1);
    ++shape.sequences;
  }
  return shape.tokens < budget ? shape : StepShape();
}

void DecodeScheduler::PlanStreams(const StepOutlook& outlook, StepPlan* plan) {
  // So many streams that nothing is left must not keep prompts out for ever.
  const int32_t reserved =
      prompts_.empty() ? 0 : std::min(kLeastChunk, options_.token_budget / 2);
  int32_t budget = options_.token_budget - reserved;
  const size_t count = running_.size();
  if (turn_ >= count) turn_ = 0;
  const StepShape alone =
      outlook.other_waits ? StepShape() : StreamsAlone(budget);
  Guessing guessing = GuessingBeside(alone, outlook, budget);
  size_t planned = 0;
  for (; planned < count && budget > 0; ++planned) {
    Sequence* const sequence = running_[(turn_ + planned) % count];
    if (sequence->uncomputed() > 1 || !HasBlocks(*sequence)) continue;
    if (alone.sequences == 0) {
      sequence->AppendTo(plan, 1);
      --budget;
      continue;
    }
    const double more = SecondsOfGuess(outlook.cost, *sequence);
    sequence->AppendDrafted(plan, std::min(options_.max_drafts, guessing.spare),
                            options_.block_size,
                            [&](int32_t drafts, double chance) {
                              return Pays(guessing, more, drafts, chance);
                            });
    guessing.taken += plan->sequences.back().num_drafts * more;
    budget -= static_cast<int32_t>(plan->sequences.back().tokens.size());
    guessing.spare -= plan->sequences.back().num_drafts;
  }
  turn_ = (turn_ + planned) % count;
}

DecodeScheduler::Guessing DecodeScheduler::GuessingBeside(
    const StepShape& alone, const StepOutlook& outlook, int32_t budget) const {
  Guessing guessing;
  guessing.taken = outlook.cost.Seconds(alone);
  guessing.most = BudgetSeconds(outlook.coming);
  if (alone.sequences > 0) {
    guessing.each = guessing.taken / static_cast<double>(alone.sequences);
  }
  // Once each stream has had its own token.
  guessing.spare = budget - static_cast<int32_t>(alone.tokens);
  return guessing;
}

double DecodeScheduler::SecondsOfGuess(const StepCost& cost,
                                       const Sequence& sequence) {
  return cost.per_token + cost.per_sequence +
         cost.per_prompt_context_token *
             static_cast<double>(sequence.computed());
}

bool DecodeScheduler::Pays(const Guessing& guessing, double more, int32_t count,
                           double chance) const {
  return options_.always_drafts ||
         (chance * guessing.each > more &&
          (guessing.most == 0 ||
           guessing.taken + count * more <= guessing.most));
}

void DecodeScheduler::BeginGuesses(const StepOutlook& outlook) {
  guessing_.clear();
  prompts_.RemoveStreams();
  const StepShape alone =
      outlook.other_waits ? StepShape() : StreamsAlone(options_.token_budget);
  if (alone.sequences == 0) return;
  guesses_ = GuessingBeside(alone, outlook, options_.token_budget);
  guessed_tokens_ = static_cast<double>(alone.sequences);
  if (!outlook.cost.known() && !options_.always_drafts) return;
  for (Sequence* const sequence : running_) {
    if (HasBlocks(*sequence) &&
        sequence->BeginGuesses(options_.max_drafts, options_.block_size)) {
      guessing_.push_back(sequence);
    }
  }
}

StepPlan DecodeScheduler::NextGuesses(const StepOutlook& outlook,
                                      const StepCost& cost) {
  StepPlan plan;
  plan.draft = true;
  std::erase_if(guessing_, [](const Sequence* s) { return !s->MayGuess(); });
  std::stable_sort(guessing_.begin(), guessing_.end(),
                   [](const Sequence* a, const Sequence* b) {
                     return a->NextGuessChance() > b->NextGuessChance();
                   });
  // The likeliest, as many as give most tokens a second.
  size_t chosen = 0;
  double best_tokens = guessed_tokens_;
  double best_seconds = guesses_.taken;
  double tokens = guessed_tokens_;
  double checking = guesses_.taken;
  StepShape shape;
  const auto most =
      std::min<size_t>(guessing_.size(), std::max(0, guesses_.spare));
  for (size_t i = 0; i < most; ++i) {
    shape += ChunkShape(guessing_[i]->GuessPosition(), 1);
    ++shape.sequences;
    tokens += guessing_[i]->NextGuessChance();
    checking += SecondsOfGuess(outlook.cost, *guessing_[i]);
    const double seconds = checking + cost.Seconds(shape);
    const bool pays = tokens * best_seconds > best_tokens * seconds &&
                      (guesses_.most == 0 || seconds <= guesses_.most);
    if (!pays && !options_.always_drafts) continue;
    chosen = i + 1;
    best_tokens = tokens;
    best_seconds = seconds;
  }
  for (size_t i = chosen; i < guessing_.size(); ++i) {
    guessing_[i]->SkipGuesses();
  }
  guessing_.resize(chosen);
  guessed_tokens_ = best_tokens;
  guesses_.taken = best_seconds;
  guesses_.spare -= static_cast<int32_t>(chosen);
  for (const Sequence* sequence : guessing_) sequence->AppendGuess(&plan);
  return plan;
}

void DecodeScheduler::TakeGuesses(const StepResult& result) {
  CHECK_EQ(result.sampled.size(), guessing_.size());
  for (size_t i = 0; i < guessing_.size(); ++i) {
    CHECK(result.sampled[i].sequence == guessing_[i]->id());
    guessing_[i]->TakeGuess(result.sampled[i]);
  }
}

bool DecodeScheduler::WaitsToGuess(const StepOutlook& outlook) {
  const StepShape alone = StreamsAlone(options_.token_budget);
  if (alone.sequences == 0) return false;
  const Guessing guessing =
      GuessingBeside(alone, outlook, options_.token_budget);
  const int32_t most = std::min(options_.max_drafts, guessing.spare);
  bool any = false;
  // All are asked: what was not worth it is forgotten in time.
  for (Sequence* const sequence : running_) {
    const double more = SecondsOfGuess(outlook.cost, *sequence);
    any |= sequence->MayDraft(most, options_.block_size,
                              [&](int32_t drafts, double chance) {
                                return Pays(guessing, more, drafts, chance);
                              });
  }
  return any;
}

double DecodeScheduler::ItlTarget(const Sequence& sequence) const {
  const Urgency& urgency = sequence.urgency();
  if (urgency.itl_target_seconds > 0) return urgency.itl_target_seconds;
  return urgency.request_class == RequestClass::kInteractive
             ? options_.itl_target_seconds
             : 0;
}

void DecodeScheduler::MarkStreams(double now) {
  for (size_t i = 0; i < running_.size(); ++i) {
    const Sequence& sequence = *running_[i];
    if (beginnings_[i].output >= 0 || sequence.uncomputed() > 1) continue;
    // One token that is left of a prompt is none of a stream yet.
    if (sequence.num_output() == 0) continue;
    beginnings_[i] = {now, sequence.num_output()};
  }
}

double DecodeScheduler::BudgetSeconds(
    absl::Span<const Sequence* const> coming) const {
  double tightest = 0;
  const auto take = [&](const Sequence& sequence) {
    const double target = ItlTarget(sequence);
    if (target > 0 && (tightest == 0 || target < tightest)) tightest = target;
  };
  for (const Sequence* sequence : running_) {
    if (sequence->uncomputed() <= 1) take(*sequence);
  }
  for (const Sequence* sequence : coming) take(*sequence);
  return StepBudgetSeconds(tightest);
}

double DecodeScheduler::CatchUpSeconds(double now, double budget) {
  for (size_t i = 0; i < running_.size(); ++i) {
    const Sequence& sequence = *running_[i];
    Beginning& beginning = beginnings_[i];
    const double target = ItlTarget(sequence);
    if (beginning.output < 0 || target == 0) continue;
    double behind = SecondsBehind(target, now - beginning.at,
                                  sequence.num_output() - beginning.output);
    if (IsLost(target, behind)) {
      beginning = {now, sequence.num_output()};
      behind = 0;
    }
    budget = std::min(budget, CatchUpBudgetSeconds(target, behind));
  }
  return budget;
}

void DecodeScheduler::PlanPrompts(const StepOutlook& outlook, StepPlan* plan) {
  if (prompts_.empty()) return;
  const StepCost& cost = outlook.cost;
  StepShape shape = ShapeOf(*plan);
  const bool beside_streams = shape.tokens > 0;
  const double usual = BudgetSeconds(outlook.coming);
  const double budget = CatchUpSeconds(outlook.now, usual);
  int32_t left = options_.token_budget - static_cast<int32_t>(shape.tokens);
  const auto fitting = [&](int64_t computed, int32_t most) {
    if (budget == 0) return most;
    if (!cost.known()) return 0;
    return MaxChunkTokens(cost, shape, budget, computed, most);
  };
  const PromptPace pace = {
      .chunk = std::max({fitting(0, left), std::min(left, kLeastChunk), 1}),
      .beside_seconds = beside_streams ? cost.Seconds(shape) - cost.fixed : 0};
  // Of `left`, what the ramp allows.
  int32_t ramp = budget > 0 ? ramp_.limit() : left;
  int32_t chunks = 0;
  int32_t ending = 0;
  for (Sequence* sequence : prompts_.Order(outlook, pace)) {
    if (sequence->loading()) continue;
    const int32_t most = std::min(left, sequence->uncomputed());
    if (most == 0) break;
    int32_t tokens = fitting(sequence->computed(), std::min(most, ramp));
    if (chunks == 0) tokens = std::max(tokens, std::min(most, kLeastChunk));
    mixed_.time_bound = tokens < most;
    if (tokens == 0) break;
    const StepShape chunk = ChunkShape(sequence->computed(), tokens);
    if (!beside_streams &&
        !PaysToJoin(cost, chunk, ending, prompts_.size() - chunks)) {
      break;
    }
    sequence->AppendTo(plan, tokens);
    prompts_.Planned(sequence);
    shape += chunk;
    shape.sequences += tokens == sequence->uncomputed();
    ending += tokens == sequence->uncomputed();
    left -= tokens;
    ramp -= std::min(ramp, tokens);
    mixed_.prompt_tokens += tokens;
    ++chunks;
    if (mixed_.time_bound) break;
  }
  if (!beside_streams) {
    mixed_ = MixedStep();
    return;
  }
  mixed_.budget_seconds = usual;
  if (cost.known()) mixed_.predicted_seconds = cost.Seconds(shape);
}

int64_t DecodeScheduler::QueuedTokens() const {
  int64_t tokens = 0;
  for (const Sequence* sequence : running_) {
    if (sequence->uncomputed() > 1) tokens += sequence->uncomputed();
  }
  return tokens;
}

int32_t DecodeScheduler::NumPrompts() const {
  return static_cast<int32_t>(
      std::count_if(running_.begin(), running_.end(),
                    [](const Sequence* s) { return s->uncomputed() > 1; }));
}

int64_t DecodeScheduler::ContextTokens() const {
  int64_t tokens = 0;
  for (const Sequence* sequence : running_) {
    tokens += sequence->num_tokens() - sequence->uncomputed();
  }
  return tokens;
}

double DecodeScheduler::SpareSeconds(const StepOutlook& outlook) {
  const double usual = BudgetSeconds(outlook.coming);
  if (usual == 0) return 0;
  const double budget = CatchUpSeconds(outlook.now, usual);
  const double own = outlook.cost.known() && last_shape_.tokens > 0
                         ? outlook.cost.Seconds(last_shape_)
                         : 0;
  return std::max(budget - own, 1e-3 * usual);
}

void DecodeScheduler::CheckInvariants() const {
  CHECK_EQ(beginnings_.size(), running_.size());
  prompts_.CheckInvariants(options_.block_size);
  for (const Sequence* sequence : running_) {
    CHECK(!sequence->finished().has_value());
    sequence->CheckInvariants(options_.block_size);
    // Prompts come with blocks for all of them.
    if (sequence->uncomputed() > 1) CHECK(HasBlocks(*sequence));
  }
}

}  // namespace baton::scheduling
