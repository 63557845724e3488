#include "planner/prefill_simulation.h"

#include <algorithm>
#include <limits>

#include "common/log.h"
#include "scheduling/placement.h"
#include "scheduling/step_budget.h"

namespace baton::planner {

PrefillSimulation::PrefillSimulation(const PrefillSimulationOptions& options,
                                     WorkerListener* listener,
                                     PrefixCacheSimulation* cache)
    : options_(options),
      listener_(listener),
      cache_(cache),
      line_(options.patience, options.cost),
      own_blocks_(options.total_blocks) {
  CHECK_GE(options.token_budget, 1);
  CHECK(options.cost.known());
}

void PrefillSimulation::ShareWith(DecodeSimulation* decode,
                                  int32_t* free_blocks) {
  CHECK(!active() && cache_ == nullptr);
  decode_ = decode;
  shared_blocks_ = free_blocks;
}

void PrefillSimulation::BlocksCame(double now) {
  if (lacks_blocks_) Interrupt(now);
}

double PrefillSimulation::Share(double now) {
  if (!active()) return 0;
  run_.CutAt(now);
  return run_.Last() - beside_seconds_;
}

void PrefillSimulation::Add(const SimulatedPrompt& prompt, double now) {
  CHECK_GE(prompt.left, 1);
  CHECK_LE(
      scheduling::BlocksFor(prompt.computed + prompt.left, options_.block_size),
      options_.total_blocks);
  new_prompts_.push_back(prompt);
  if (cache_ != nullptr) {
    new_prompts_.back().cached =
        cache_->CachedTokens(prompt.request, prompt.left - 1);
  }
  queued_ += prompt.left;
  Interrupt(now);
}

void PrefillSimulation::Release(int32_t tokens, double now) {
  AddBlocks(scheduling::BlocksFor(tokens, options_.block_size));
  CHECK_LE(OwnBlocks(), options_.total_blocks);
  BlocksCame(now);
}

double PrefillSimulation::next_event() const {
  return active() ? run_.end() : std::numeric_limits<double>::infinity();
}

void PrefillSimulation::Interrupt(double now) {
  if (active()) {
    run_.count = run_.StepsUntil(now);
  } else {
    Plan(now);
  }
}

void PrefillSimulation::Advance() {
  CHECK(active());
  const double now = run_.end();
  if (run_.count > 0) {
    const double seconds =
        now - run_.start - static_cast<double>(run_.count) * beside_seconds_;
    usage_.busy_seconds += seconds;
    usage_.sequence_seconds += seconds * static_cast<double>(chunks_.size());
    usage_.steps += run_.count;
    usage_.prompt_tokens += run_.count * chunk_tokens_;
    queued_ -= run_.count * chunk_tokens_;
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
      listener_->OnFirstToken(prompt.request, prompt.started, now);
    }
  }
  Plan(now);
}

bool PrefillSimulation::GiveBlocks(SimulatedPrompt* prompt) {
  if (prompt->has_blocks) return true;
  const int32_t blocks = scheduling::BlocksFor(prompt->computed + prompt->left,
                                               options_.block_size);
  // At least the last token is computed.
  const int32_t most = prompt->left - 1;
  const int32_t shared =
      cache_ == nullptr ? 0 : cache_->SharedBlocksWith(prompt->request, most);
  if (blocks > OwnBlocks() + shared) return false;
  AddBlocks(-blocks);
  prompt->has_blocks = true;
  if (cache_ == nullptr) return true;
  const int32_t cached = cache_->Hold(prompt->request, most);
  cache_->Fit(OwnBlocks());
  prompt->computed += cached;
  prompt->left -= cached;
  queued_ -= cached;
  usage_.cached_tokens += cached;
  return true;
}

void PrefillSimulation::Plan(double now) {
  run_ = {.start = now};
  chunks_.clear();
  chunk_tokens_ = 0;
  lacks_blocks_ = false;
  beside_seconds_ = 0;
  // Those that come between two steps: what is cached goes first.
  std::stable_sort(
      new_prompts_.begin(), new_prompts_.end(),
      [](const auto& a, const auto& b) { return a.cached > b.cached; });
  for (const SimulatedPrompt& prompt : new_prompts_) line_.Add(prompt);
  new_prompts_.clear();
  if (line_.empty()) return;
  const double most_seconds =
      decode_ == nullptr ? 0 : decode_->SpareSeconds(now);
  // What it takes, and what the scheduler takes it for: each chunk as if it
  // ended its prompt.
  scheduling::StepShape work;
  scheduling::StepShape shape;
  int32_t budget = options_.token_budget;
  int32_t waiting = line_.size();
  for (const size_t place : line_.Order(now, options_.token_budget, 0)) {
    if (budget == 0) break;
    SimulatedPrompt& prompt = line_.prompts()[place];
    if (!prompt.has_blocks && lacks_blocks_) continue;
    int32_t cached = 0;
    if (!prompt.has_blocks && cache_ != nullptr) {
      cached = cache_->CachedTokens(prompt.request, prompt.left - 1);
    }
    int32_t tokens = Fitting(shape, most_seconds, prompt.computed + cached,
                             std::min(budget, prompt.left - cached));
    if (tokens == 0) break;
    if (!scheduling::PaysToJoin(
            options_.cost,
            scheduling::ChunkShape(prompt.computed + cached, tokens),
            static_cast<int32_t>(work.sequences), waiting)) {
      break;
    }
    // One that lacks blocks holds up all that have not begun.
    if (!GiveBlocks(&prompt)) {
      lacks_blocks_ = true;
      continue;
    }
    if (most_seconds == 0) tokens = std::min(budget, prompt.left);
    const scheduling::StepShape chunk =
        scheduling::ChunkShape(prompt.computed, tokens);
    chunks_.emplace_back(place, tokens);
    shape += chunk;
    ++shape.sequences;
    budget -= tokens;
    --waiting;
    work += chunk;
    work.sequences += tokens == prompt.left;
    if (tokens == prompt.left && !prompt.nears_end) {
      prompt.nears_end = true;
      listener_->OnLastChunk(prompt.request, now);
    }
  }
  if (chunks_.empty()) return;
  chunk_tokens_ = work.tokens;
  const auto chunk = static_cast<double>(chunk_tokens_);
  if (decode_ != nullptr) beside_seconds_ = decode_->Share(now);
  run_.first = options_.cost.Seconds(work) + beside_seconds_;
  run_.growth = (chunk_tokens_ > 1 ? options_.cost.per_prompt_context_token
                                   : options_.cost.per_context_token) *
                chunk * chunk;
  run_.count = 1;
  if (most_seconds > 0 || beside_seconds_ > 0) return;
  // As long as one prompt takes all of the budget, and does not end.
  const auto& [place, tokens] = chunks_.front();
  const int32_t left = line_.prompts()[place].left;
  if (options_.fast_forward && line_.is_steady() && chunks_.size() == 1 &&
      tokens == options_.token_budget && tokens < left) {
    run_.count = (left - 1) / tokens;
  }
}

int32_t PrefillSimulation::Fitting(const scheduling::StepShape& shape,
                                   double most_seconds, int32_t computed,
                                   int32_t most) const {
  if (most_seconds == 0) return most;
  const int32_t tokens = scheduling::MaxChunkTokens(
      options_.cost, shape, most_seconds, computed, most);
  return shape.tokens > 0
             ? tokens
             : std::max(tokens, std::min(most, scheduling::kLeastChunk));
}

int32_t PrefillSimulation::num_queued() const {
  return line_.size() + static_cast<int32_t>(new_prompts_.size());
}

int64_t PrefillSimulation::QueuedTokens(double now) const {
  return active() ? queued_ - run_.StepsOver(now) * chunk_tokens_ : queued_;
}

}  // namespace baton::planner
