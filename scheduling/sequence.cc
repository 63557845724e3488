#include "scheduling/sequence.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include "absl/algorithm/container.h"
#include "common/log.h"

namespace baton::scheduling {
namespace {

// How many of so many guesses are worth it, each of which comes true with that
// chance; `before` of them come first, and are not checked.
int32_t CountWorth(int32_t before, int32_t size, double each,
                   Sequence::Worth worth) {
  double chance = 1;
  for (int32_t i = 0; i < before; ++i) chance *= each;
  int32_t count = 0;
  while (count < size && worth(count + 1, chance *= each)) ++count;
  return count;
}

}  // namespace

Sequence::Sequence(SequenceId id, std::vector<TokenId> tokens,
                   int32_t prompt_length, SamplingParams sampling,
                   StopParams stop, int32_t top_logprobs,
                   const Urgency& urgency, std::string cache_salt,
                   int32_t adapter)
    : id_(id),
      tokens_(std::move(tokens)),
      prompt_length_(prompt_length),
      sampling_(std::move(sampling)),
      stop_(std::move(stop)),
      top_logprobs_(top_logprobs),
      urgency_(urgency),
      cache_salt_(std::move(cache_salt)),
      adapter_(adapter),
      next_logprob_(prompt_length) {
  CHECK_GE(prompt_length_, 1);
  CHECK_LE(prompt_length_, num_tokens());
}

absl::StatusOr<GuidedOutput::Next> Sequence::FollowGuide() {
  return guided_->Follow(absl::MakeConstSpan(tokens_).subspan(prompt_length_),
                         stop_.stop_token_ids,
                         /*may_stop=*/num_output() >= stop_.min_output_tokens,
                         sampling_.allowed.get());
}

absl::Status Sequence::Guide(std::shared_ptr<OutputGuide> guide) {
  CHECK(guided_ == nullptr && !finished_.has_value());
  guided_ = std::make_unique<GuidedOutput>(std::move(guide));
  const absl::StatusOr<GuidedOutput::Next> next = FollowGuide();
  if (!next.ok()) return next.status();
  if (*next == GuidedOutput::Next::kComplete) {
    return absl::InvalidArgumentError(
        "the output is all that its grammar allows");
  }
  return absl::OkStatus();
}

PlannedSequence Sequence::Planned(int32_t num_output) const {
  PlannedSequence planned;
  planned.sequence = id_;
  planned.blocks = blocks_.ids();
  planned.adapter = adapter_;
  planned.sampling = &sampling_;
  planned.history = tokens_;
  planned.prompt_length = prompt_length_;
  if (num_output < stop_.min_output_tokens) {
    planned.forbidden = stop_.stop_token_ids;
  }
  planned.allowed =
      guided_ != nullptr ? guided_->allowed() : sampling_.allowed.get();
  planned.top_logprobs = top_logprobs_;
  return planned;
}

void Sequence::WantPromptLogprobs(int32_t first, int32_t top) {
  CHECK_EQ(computed_, 0);
  CHECK_GE(first, 1);
  CHECK_LT(first, prompt_length_);
  next_logprob_ = first;
  prompt_top_logprobs_ = top;
}

int32_t Sequence::CommitPromptLogprobs(const PlannedSequence& planned) {
  const int32_t first = planned.first_position + 1;
  const auto end = first + static_cast<int32_t>(planned.targets.size());
  CHECK_LE(end, prompt_length_);
  const int32_t known = std::clamp(next_logprob_, first, end) - first;
  next_logprob_ = std::max(next_logprob_, end);
  return known;
}

void Sequence::AppendTo(StepPlan* plan, int32_t max_tokens) const {
  CHECK(!finished_.has_value());
  CHECK(guide_status_.ok()) << guide_status_;
  CHECK_GE(max_tokens, 1);
  const int32_t count = std::min(max_tokens, uncomputed());
  CHECK_GE(count, 1);
  PlannedSequence planned = Planned(num_output());
  planned.tokens = absl::MakeConstSpan(tokens_).subspan(computed_, count);
  planned.first_position = computed_;
  planned.sample = count == uncomputed();
  const int32_t end = std::min(computed_ + count + 1, prompt_length_);
  if (next_logprob_ < end) {
    planned.targets = absl::MakeConstSpan(tokens_).subspan(computed_ + 1,
                                                           end - computed_ - 1);
    planned.target_top_logprobs = prompt_top_logprobs_;
  }
  plan->sequences.push_back(planned);
}

void Sequence::AppendDrafted(StepPlan* plan, int32_t most, int32_t block_size,
                             Worth worth) {
  CHECK_EQ(uncomputed(), 1);
  AppendTo(plan, 1);
  most = MostGuesses(/*unknown=*/0, most, block_size);
  if (most <= 0) return;
  absl::Span<const TokenId> guess = GuessesToCheck(most);
  draft_source_ = GuessSource::kModel;
  if (guess.empty()) {
    guess = LookUp(/*unknown=*/0, most, worth);
    draft_source_ = GuessSource::kLookedUp;
  }
  if (guess.empty()) {
    guess = Force(most, worth);
    draft_source_ = GuessSource::kForced;
  }
  if (guess.empty()) return;
  drafted_.assign(1, tokens_.back());
  drafted_.insert(drafted_.end(), guess.begin(), guess.end());
  PlannedSequence& planned = plan->sequences.back();
  planned.tokens = drafted_;
  planned.num_drafts = static_cast<int32_t>(guess.size());
  if (guided_ == nullptr) return;
  allowed_after_drafts_.clear();
  for (int32_t i = 0; i < planned.num_drafts; ++i) {
    allowed_after_drafts_.push_back(draft_masks_[i].get());
  }
  planned.allowed_after_drafts = allowed_after_drafts_;
}

bool Sequence::BeginGuesses(int32_t most, int32_t block_size) {
  CHECK_EQ(uncomputed(), 1);
  guessed_tokens_ = tokens_;
  draft_masks_.clear();
  most_guesses_ = MostGuesses(/*unknown=*/0, most, block_size);
  guesses_end_ = false;
  if (most_guesses_ <= 0) return false;
  // What costs nothing comes first, where it comes true as often as not.
  const auto any = [](int32_t, double) { return true; };
  const auto mostly = [&](GuessSource source) {
    return chance_of(source).value() >= GuessChance::kUnknown;
  };
  guesses_end_ =
      (mostly(GuessSource::kLookedUp) &&
       !LookUp(/*unknown=*/0, /*most=*/1, any).empty()) ||
      (mostly(GuessSource::kForced) && !Force(/*most=*/1, any).empty());
  return !guesses_end_;
}

double Sequence::NextGuessChance() const {
  return std::pow(chances_[static_cast<size_t>(GuessSource::kModel)].value(),
                  NumGuesses() + 1);
}

void Sequence::AppendGuess(StepPlan* plan) const {
  CHECK(!finished_.has_value());
  CHECK(MayGuess());
  PlannedSequence planned = Planned(num_output() + NumGuesses());
  planned.history = guessed_tokens_;
  planned.tokens = planned.history.last(1);
  planned.first_position = GuessPosition();
  planned.sample = true;
  planned.top_logprobs = 0;
  if (guided_ != nullptr && NumGuesses() > 0) {
    planned.allowed = draft_masks_.back().get();
  }
  plan->sequences.push_back(planned);
}

void Sequence::TakeGuess(const SampledToken& sampled) {
  CHECK(MayGuess());
  guesses_end_ = !sampled.ok;
  if (!sampled.ok) return;
  guessed_tokens_.push_back(sampled.token);
  const bool stops = absl::c_linear_search(stop_.stop_token_ids, sampled.token);
  if (guided_ != nullptr) {
    const auto guess =
        absl::MakeConstSpan(guessed_tokens_).subspan(tokens_.size());
    if (KeepAllowed(guess).size() < guess.size()) {
      guessed_tokens_.pop_back();
      guesses_end_ = true;
    }
  }
  guesses_end_ |= stops;
}

absl::Span<const TokenId> Sequence::GuessesToCheck(int32_t most) {
  absl::Span<const TokenId> guess;
  if (NumGuesses() > 0 &&
      std::equal(tokens_.begin(), tokens_.end(), guessed_tokens_.begin())) {
    guess = absl::MakeConstSpan(guessed_tokens_).subspan(tokens_.size());
    guess = guess.first(std::min<size_t>(guess.size(), most));
    if (guided_ != nullptr) guess = KeepAllowed(guess);
  }
  most_guesses_ = 0;
  return guess;
}

bool Sequence::MayDraft(int32_t most, int32_t block_size, Worth worth) {
  CHECK(CanFollow());
  most = MostGuesses(/*unknown=*/1, most, block_size);
  if (most <= 0) return false;
  const absl::Span<const TokenId> guess = LookUp(/*unknown=*/1, most, worth);
  if (guess.empty()) return false;
  awaited_ = guess[0];
  return true;
}

bool Sequence::HasRoomToGuess(int32_t most, int32_t block_size) const {
  return (drafter_ == nullptr && guessed_tokens_.empty()) ||
         int64_t{blocks_.size()} * block_size >=
             std::min(num_tokens() + most, MaxComputed());
}

int32_t Sequence::MostGuesses(int32_t unknown, int32_t most,
                              int32_t block_size) const {
  const int32_t said = num_output() + unknown;
  if (!HasNoPenalties() || said < stop_.min_output_tokens) return 0;
  const int64_t room =
      int64_t{blocks_.size()} * block_size - num_tokens() - unknown;
  // The last token of the output is never run.
  const int32_t left = stop_.max_output_tokens - said - 1;
  return static_cast<int32_t>(std::min<int64_t>({most, room, left}));
}

absl::Span<const TokenId> Sequence::LookUp(int32_t unknown, int32_t most,
                                           Worth worth) {
  const double each = chance_of(GuessSource::kLookedUp).value();
  const int32_t count = CountWorth(unknown, most, each, worth);
  if (count == 0) {
    chance_of(GuessSource::kLookedUp).Skip();
    return {};
  }
  if (drafter_ == nullptr) drafter_ = std::make_unique<Drafter>();
  const absl::Span<const TokenId> guess =
      drafter_->Guess(tokens_, count + unknown);
  return guided_ != nullptr ? KeepAllowed(guess) : guess;
}

absl::Span<const TokenId> Sequence::Force(int32_t most, Worth worth) {
  if (guided_ == nullptr) return {};
  GuessChance& chance = chance_of(GuessSource::kForced);
  const int32_t count = CountWorth(/*before=*/0, most, chance.value(), worth);
  if (count == 0) {
    chance.Skip();
    return {};
  }
  forced_tokens_ = guided_->Forced(count);
  return KeepAllowed(forced_tokens_);
}

absl::Span<const TokenId> Sequence::KeepAllowed(
    absl::Span<const TokenId> guess) {
  draft_masks_ =
      guided_->LookAhead(guess, stop_.stop_token_ids, sampling_.allowed.get());
  return guess.first(draft_masks_.size());
}

int32_t Sequence::JudgeDrafts(const PlannedSequence& planned,
                              absl::Span<const SampledToken> sampled) {
  const auto drafts = planned.tokens.last(planned.num_drafts);
  int32_t right = 0;
  bool ends = false;
  while (right < planned.num_drafts && !ends && sampled[right].ok &&
         sampled[right].token == drafts[right]) {
    ends = std::find(stop_.stop_token_ids.begin(), stop_.stop_token_ids.end(),
                     drafts[right]) != stop_.stop_token_ids.end();
    ++right;
  }
  chance_of(draft_source_).Learn(ends ? right : planned.num_drafts, right);
  return right;
}

bool Sequence::HasNoPenalties() const {
  return sampling_.repetition_penalty == 1.0f &&
         sampling_.presence_penalty == 0.0f &&
         sampling_.frequency_penalty == 0.0f;
}

bool Sequence::CanFollow() const {
  return guided_ == nullptr && HasNoPenalties();
}

void Sequence::AppendFollowing(StepPlan* plan) const {
  static constexpr TokenId kUnknown[] = {0};
  CHECK(!finished_.has_value());
  CHECK(CanFollow() && !EndsNext());
  CHECK_EQ(uncomputed(), 1);
  PlannedSequence planned = Planned(num_output() + 1);
  planned.tokens = kUnknown;
  planned.first_position = num_tokens();
  planned.sample = true;
  planned.follows = true;
  plan->sequences.push_back(planned);
}

void Sequence::CommitComputed(int32_t count) {
  CHECK_GE(count, 1);
  CHECK_LE(count, uncomputed());
  computed_ += count;
}

void Sequence::CommitSampled(TokenId token) {
  CHECK_EQ(uncomputed(), 0);
  CHECK(!finished_.has_value());
  if (awaited_.has_value()) {
    chance_of(GuessSource::kLookedUp)
        .Learn(1, *std::exchange(awaited_, std::nullopt) == token ? 1 : 0);
  }
  tokens_.push_back(token);
  finished_ = CheckFinished(stop_, num_output(), token);
  // What ends the output is not part of what the grammar describes.
  if (guided_ == nullptr || finished_ == FinishReason::kStop) return;
  const absl::StatusOr<GuidedOutput::Next> next = FollowGuide();
  if (!next.ok()) {
    if (!finished_.has_value()) guide_status_ = next.status();
  } else if (*next == GuidedOutput::Next::kComplete) {
    finished_ = FinishReason::kStop;
  }
}

void Sequence::CheckInvariants(int32_t block_size) const {
  CHECK_GE(prompt_length_, 1);
  CHECK_LE(prompt_length_, num_tokens());
  CHECK_GE(computed_, 0);
  if (!finished_.has_value()) CHECK_LT(computed_, num_tokens());
  CHECK_GE(int64_t{blocks_.size()} * block_size, computed_);
  // All that is wanted came before what needs it.
  CHECK(next_logprob_ >= 1 && next_logprob_ <= prompt_length_);
  CHECK(!wants_prompt_logprobs() || computed_ < next_logprob_);
}

}  // namespace baton::scheduling
