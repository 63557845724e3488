#include "planner/decode_simulation.h"

#include <algorithm>
#include <limits>
#include <tuple>

#include "common/log.h"

namespace baton::planner {
namespace {

using scheduling::kLeastChunk;

// ChunkRamp has forgotten all prompts after so many steps without.
constexpr int64_t kRampMemory = 512;

// For a heap with the one that ends first on top.
constexpr auto kEndsLater = [](const auto& a, const auto& b) {
  return std::tie(a.last_step, a.request) > std::tie(b.last_step, b.request);
};

}  // namespace

int32_t DecodeSimulation::MostSequences(int32_t token_budget) {
  return token_budget - std::min(kLeastChunk, token_budget / 2);
}

DecodeSimulation::DecodeSimulation(const DecodeSimulationOptions& options,
                                   WorkerListener* listener, GapHistogram* gaps)
    : options_(options),
      listener_(listener),
      gaps_(gaps),
      line_(options.patience, options.cost),
      ramp_(std::min(2 * kLeastChunk, options.token_budget),
            options.token_budget) {
  CHECK(options.cost.known());
}

void DecodeSimulation::AddStream(uint32_t request, int32_t context,
                                 int32_t left, double last_token_at,
                                 double now) {
  CHECK_GE(left, 1);
  new_streams_.push_back({request, context, left, last_token_at, now});
  Interrupt(now);
}

void DecodeSimulation::AddPrompt(const SimulatedPrompt& prompt, double now) {
  CHECK_GE(prompt.left, 1);
  CHECK_GE(prompt.output, 1);
  new_prompts_.push_back(prompt);
  Interrupt(now);
}

double DecodeSimulation::Share(double now) {
  if (!active()) return 0;
  run_.CutAt(now);
  return run_.Last() - beside_seconds_;
}

double DecodeSimulation::SpareSeconds(double now) const {
  const auto streams = static_cast<int64_t>(streams_.size());
  const auto beside = streams + static_cast<int64_t>(short_prompts_.size());
  const double target = options_.itl_target_seconds;
  if (target <= 0 || (beside == 0 && num_coming_ == 0)) return 0;
  const double budget = scheduling::StepBudgetSeconds(target);
  scheduling::StepShape shape = {.tokens = beside,
                                 .context_tokens = stream_context_ + beside,
                                 .sequences = beside};
  // In the step that runs.
  if (active()) {
    const int64_t step = std::max<int64_t>(0, run_.StepsUntil(now) - 1);
    shape.context_tokens += step * streams;
  }
  for (const SimulatedPrompt& prompt : short_prompts_) {
    shape.context_tokens += prompt.computed;
  }
  const double own = beside > 0 ? options_.cost.Seconds(shape) : 0;
  return std::max(budget - own, 1e-3 * budget);
}

void DecodeSimulation::Coming(double now) {
  ++num_coming_;
  if (prefill_ != nullptr) prefill_->Share(now);
  if (active()) Interrupt(now);
}

void DecodeSimulation::NoLongerComing(double now) {
  --num_coming_;
  CHECK_GE(num_coming_, 0);
  if (prefill_ != nullptr) prefill_->Share(now);
  if (active()) Interrupt(now);
}

double DecodeSimulation::next_event() const {
  return active() ? run_.end() : std::numeric_limits<double>::infinity();
}

void DecodeSimulation::Interrupt(double now) {
  if (active()) {
    run_.count = run_.StepsUntil(now);
  } else {
    Join();
    Plan(now);
  }
}

void DecodeSimulation::Advance() {
  CHECK(active());
  const double now = run_.end();
  if (run_.count > 0) {
    CountRun();
    steps_ += run_.count;
    stream_context_ += run_.count * static_cast<int64_t>(streams_.size());
    CommitPrompts(now);
    EndStreams(now);
  }
  Join();
  Plan(now);
}

void DecodeSimulation::CountRun() {
  const double seconds = run_.end() - run_.start -
                         static_cast<double>(run_.count) * beside_seconds_;
  const auto streams = static_cast<int64_t>(streams_.size());
  usage_.busy_seconds += seconds;
  usage_.steps += run_.count;
  usage_.prompt_tokens +=
      run_.count * chunk_tokens_ + static_cast<int64_t>(short_prompts_.size());
  usage_.sequence_seconds +=
      seconds * static_cast<double>(streams_.size() + chunks_.size() +
                                    short_prompts_.size());
  // Streams that came from elsewhere have waited longer for their first token
  // than its step took.
  gaps_->Add(run_.first, streams - static_cast<int64_t>(fresh_.size()));
  gaps_->AddRun({.start = run_.EndOf(1),
                 .first = run_.Duration(1),
                 .growth = run_.growth,
                 .count = run_.count - 1},
                streams);
  for (const auto& [request, last_token_at] : fresh_) {
    const double gap = run_.EndOf(1) - last_token_at;
    gaps_->Add(gap, 1);
    listener_->OnFirstGap(request, gap);
  }
  fresh_.clear();
  for (int64_t i = std::min(run_.count, kRampMemory); i > 0; --i) {
    ramp_.Planned(static_cast<int32_t>(chunk_tokens_));
  }
  if (streams == 0) {
    peaks_.clear();
    return;
  }
  const double longest = run_.Duration(run_.count - 1);
  while (!peaks_.empty() && peaks_.back().seconds <= longest) {
    peaks_.pop_back();
  }
  peaks_.push_back({run_number_, longest});
}

void DecodeSimulation::CommitPrompts(double now) {
  for (SimulatedPrompt& prompt : short_prompts_) {
    if (prompt.started < 0) prompt.started = run_.start;
    ++prompt.computed;
    OnPromptEnd(prompt, now);
  }
  short_prompts_.clear();
  // Here, and not before: a run that was interrupted at once is none.
  for (const auto& [place, tokens] : chunks_) {
    SimulatedPrompt& prompt = line_.prompts()[place];
    line_.Planned(place);
    if (prompt.started < 0) prompt.started = run_.start;
    const auto count = static_cast<int32_t>(run_.count * tokens);
    prompt.computed += count;
    prompt.left -= count;
  }
  for (const SimulatedPrompt& prompt : line_.TakeWithAtMost(0)) {
    OnPromptEnd(prompt, now);
  }
}

void DecodeSimulation::OnPromptEnd(const SimulatedPrompt& prompt, double now) {
  listener_->OnFirstToken(prompt.request, prompt.started, now);
  if (prompt.output == 1) {
    listener_->OnFinished(prompt.request, 0, now);
  } else {
    PushStream(prompt.request, prompt.computed, prompt.output - 1,
               run_number_ + 1, now);
  }
}

void DecodeSimulation::PushStream(uint32_t request, int64_t context,
                                  int32_t left, uint32_t first_run,
                                  double began_at) {
  streams_.push_back({.last_step = steps_ + left,
                      .base = context - steps_,
                      .request = request,
                      .first_run = first_run,
                      .began_at = began_at,
                      .first_step = steps_});
  std::push_heap(streams_.begin(), streams_.end(), kEndsLater);
  stream_context_ += context;
}

void DecodeSimulation::EndStreams(double now) {
  while (!streams_.empty() && streams_.front().last_step <= steps_) {
    std::pop_heap(streams_.begin(), streams_.end(), kEndsLater);
    const Stream stream = streams_.back();
    streams_.pop_back();
    stream_context_ -= stream.base + steps_;
    listener_->OnFinished(stream.request, LongestSince(stream.first_run), now);
  }
}

double DecodeSimulation::LongestSince(uint32_t run) const {
  const auto peak = std::lower_bound(
      peaks_.begin(), peaks_.end(), run,
      [](const Peak& p, uint32_t number) { return p.run < number; });
  return peak == peaks_.end() ? 0 : peak->seconds;
}

void DecodeSimulation::Join() {
  for (const NewStream& stream : new_streams_) {
    PushStream(stream.request, stream.context, stream.left, run_number_ + 1,
               stream.landed_at);
    fresh_.emplace_back(stream.request, stream.last_token_at);
  }
  new_streams_.clear();
  for (const SimulatedPrompt& prompt : new_prompts_) {
    // One token alone never stands in the line of prompts.
    if (prompt.left == 1) {
      short_prompts_.push_back(prompt);
    } else {
      line_.Add(prompt);
    }
  }
  new_prompts_.clear();
}

void DecodeSimulation::Plan(double now) {
  run_ = {.start = now};
  chunks_.clear();
  chunk_tokens_ = 0;
  time_bound_ = false;
  beside_seconds_ = 0;
  for (const SimulatedPrompt& prompt : line_.TakeWithAtMost(1)) {
    short_prompts_.push_back(prompt);
  }
  if (streams_.empty() && short_prompts_.empty() && line_.empty()) return;
  ++run_number_;
  const auto streams = static_cast<int64_t>(streams_.size());
  // Short prompts are as good as streams.
  const auto beside = streams + static_cast<int64_t>(short_prompts_.size());
  scheduling::StepShape shape = {.tokens = beside,
                                 .context_tokens = stream_context_ + beside,
                                 .sequences = beside};
  for (const SimulatedPrompt& prompt : short_prompts_) {
    shape.context_tokens += prompt.computed;
  }
  CHECK_LE(beside, MostSequences(options_.token_budget));
  if (!line_.empty()) PlanPrompts(now, &shape);
  if (prefill_ != nullptr) beside_seconds_ = prefill_->Share(now);
  run_.first = options_.cost.Seconds(shape) + beside_seconds_;
  // One step more: each stream reads one position more, each of the chunk's
  // tokens as many as the chunk has.
  const auto chunk = static_cast<double>(chunk_tokens_);
  run_.growth = options_.cost.per_context_token * static_cast<double>(streams) +
                (chunk_tokens_ > 1 ? options_.cost.per_prompt_context_token
                                   : options_.cost.per_context_token) *
                    chunk * chunk;
  run_.count = RunLength();
}

void DecodeSimulation::PlanPrompts(double now, scheduling::StepShape* shape) {
  const scheduling::StepCost& cost = options_.cost;
  const auto beside = static_cast<int32_t>(shape->tokens);
  const double budget = BudgetSeconds(now, beside > 0);
  time_bound_ = budget > 0;
  int32_t left = options_.token_budget - beside;
  const auto fitting = [&](int64_t computed, int32_t most) {
    return budget == 0 ? most
                       : scheduling::MaxChunkTokens(cost, *shape, budget,
                                                    computed, most);
  };
  const int32_t pace =
      std::max({fitting(0, left), std::min(left, kLeastChunk), 1});
  const double beside_seconds =
      beside > 0 ? cost.Seconds(*shape) - cost.fixed : 0;
  int32_t ramp = budget > 0 ? ramp_.limit() : left;
  int32_t ending = 0;
  for (const size_t place : line_.Order(now, pace, beside_seconds)) {
    const SimulatedPrompt& prompt = line_.prompts()[place];
    const int32_t most = std::min(left, prompt.left);
    if (most == 0) break;
    int32_t tokens = fitting(prompt.computed, std::min(most, ramp));
    if (chunks_.empty()) tokens = std::max(tokens, std::min(most, kLeastChunk));
    if (tokens == 0) break;
    const scheduling::StepShape chunk =
        scheduling::ChunkShape(prompt.computed, tokens);
    const bool done = tokens == prompt.left;
    if (beside == 0 &&
        !scheduling::PaysToJoin(
            cost, chunk, ending,
            line_.size() - static_cast<int32_t>(chunks_.size()))) {
      break;
    }
    ending += done;
    chunks_.emplace_back(place, tokens);
    chunk_tokens_ += tokens;
    *shape += chunk;
    shape->sequences += done;
    left -= tokens;
    ramp -= std::min(ramp, tokens);
    if (tokens < most) break;
  }
}

double DecodeSimulation::BudgetSeconds(double now, bool beside_streams) {
  const double target = options_.itl_target_seconds;
  if (target <= 0 || (!beside_streams && num_coming_ == 0)) return 0;
  double budget = scheduling::StepBudgetSeconds(target);
  for (Stream& stream : streams_) {
    double behind = scheduling::SecondsBehind(target, now - stream.began_at,
                                              steps_ - stream.first_step);
    if (scheduling::IsLost(target, behind)) {
      stream.began_at = now;
      stream.first_step = steps_;
      behind = 0;
    }
    budget = std::min(budget, scheduling::CatchUpBudgetSeconds(target, behind));
  }
  return budget;
}

int64_t DecodeSimulation::RunLength() const {
  if (!options_.fast_forward || !short_prompts_.empty() ||
      beside_seconds_ > 0) {
    return 1;
  }
  int64_t steps = std::numeric_limits<int64_t>::max();
  if (!streams_.empty()) steps = streams_.front().last_step - steps_;
  if (line_.empty()) return steps;
  // As long as one prompt takes all that prompts may, and does not end. What
  // the time leaves them is another number of tokens in each step.
  if (time_bound_ || !line_.is_steady() || chunks_.size() != 1) return 1;
  const auto& [place, tokens] = chunks_.front();
  const int32_t left = line_.prompts()[place].left;
  return tokens == left ? 1 : std::min<int64_t>(steps, (left - 1) / tokens);
}

int32_t DecodeSimulation::running() const {
  return line_.size() +
         static_cast<int32_t>(streams_.size() + short_prompts_.size() +
                              new_streams_.size() + new_prompts_.size());
}

int64_t DecodeSimulation::QueuedTokens(double now) const {
  auto tokens = static_cast<int64_t>(short_prompts_.size());
  for (const SimulatedPrompt& prompt : line_.prompts()) tokens += prompt.left;
  for (const SimulatedPrompt& prompt : new_prompts_) tokens += prompt.left;
  if (active()) tokens -= run_.StepsOver(now) * chunk_tokens_;
  return tokens;
}

int64_t DecodeSimulation::ContextTokens(double now) const {
  int64_t tokens = stream_context_;
  for (const NewStream& stream : new_streams_) tokens += stream.context;
  for (const auto* prompts :
       {&line_.prompts(), &short_prompts_, &new_prompts_}) {
    for (const SimulatedPrompt& prompt : *prompts) tokens += prompt.computed;
  }
  if (active()) {
    tokens += run_.StepsOver(now) *
              (chunk_tokens_ + static_cast<int64_t>(streams_.size()));
  }
  return tokens;
}

}  // namespace baton::planner
