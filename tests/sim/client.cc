#include "tests/sim/client.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "router/prefix_salt.h"
#include "router/worker_messages.h"
#include "scheduling/block_hash.h"
#include "tests/sim/mix.h"
#include "tests/sim/sim_engine.h"

namespace baton::sim {
namespace {

// A request that has this long ends before its deadline: all of them, one after
// another and a token in a tenth of a second, take less.
constexpr absl::Duration kLongTimeLimit = absl::Seconds(80);

// At most `length` tokens that other prompts begin with too.
std::vector<TokenId> DrawBeginning(int length,
                                   const scheduling::RequestSpec* earlier,
                                   Dice* dice) {
  std::vector<TokenId> tokens;
  if (earlier != nullptr && dice->Chance(0.5)) {
    tokens = earlier->prompt;
    const std::vector<TokenId> output = ReferenceOutput(*earlier);
    tokens.insert(tokens.end(), output.begin(), output.end());
  } else {
    const auto text = static_cast<uint64_t>(dice->Below(2));
    for (uint64_t i = 0; i < 40; ++i) {
      tokens.push_back(static_cast<TokenId>(Mix(text, i) % kVocabSize));
    }
  }
  const int most = std::min(length, static_cast<int>(tokens.size()));
  tokens.resize(
      static_cast<size_t>(dice->Chance(0.5) ? most : dice->Between(0, most)));
  return tokens;
}

// One to three stop strings, most of them in the text; none when there is no
// text.
std::vector<std::string> DrawStops(const scheduling::RequestSpec& spec,
                                   Dice* dice) {
  const std::string text = ExpectAnswer(spec, {}).text;
  std::vector<size_t> characters;  // where they begin, and the end
  for (size_t i = 0; i <= text.size(); ++i) {
    if (i == text.size() || (text[i] & 0xC0) != 0x80) characters.push_back(i);
  }
  const int most = static_cast<int>(characters.size()) - 1;
  std::vector<std::string> stops;
  if (most < 1) return stops;
  for (int count = dice->Between(1, 3); count > 0; --count) {
    const int first = dice->Below(most);
    const int end = std::min(most, first + dice->Between(1, 12));
    stops.push_back(
        text.substr(characters[first], characters[end] - characters[first]));
    // Nearly all of it is there, and held back for nothing.
    if (dice->Chance(0.3)) stops.back() += "~";
  }
  return stops;
}

}  // namespace

// The router's end. It may outlive neither the client nor the router.
class Client::Stream final : public router::ClientStream {
 public:
  explicit Stream(Client* client) : client_(client) {}

  bool Send(v1::GenerateResponse response) override {
    return client_->Take(response);
  }
  void Finish(const absl::Status& status,
              std::optional<absl::Duration> retry_after) override {
    client_->TakeEnd(status);
  }

 private:
  Client* const client_;
};

Client::Client(Options options, const SimClock* clock, Journal* journal,
               Coverage* coverage, const Excuses* excuses)
    : options_(std::move(options)),
      clock_(clock),
      journal_(journal),
      coverage_(coverage),
      excuses_(excuses),
      expected_(ExpectAnswer(options_.spec, options_.answer)),
      expected_prompt_(ReferencePromptLogprobs(options_.spec)) {}

std::unique_ptr<router::IncomingRequest> Client::Ask(router::RequestKey key) {
  asked_ = true;
  key_ = key;
  asked_at_ = clock_->Now();
  deadline_ = asked_at_ + options_.time_limit;
  auto incoming = std::make_unique<router::IncomingRequest>();
  incoming->key = key;
  incoming->spec = options_.spec;
  incoming->answer = options_.answer;
  incoming->prefix.block_size = kBlockSize;
  incoming->prefix.salt = options_.salt;
  incoming->prefix.names =
      scheduling::ChainOf(options_.salt, kBlockSize, options_.spec.prompt);
  incoming->received_at = asked_at_;
  incoming->deadline = deadline_;
  incoming->stream = std::make_shared<Stream>(this);
  return incoming;
}

void Client::Cancel() { cancelled_ = true; }

void Client::LoseRouter() {
  if (!asked_ || ended_) return;
  router_lost_ = true;
  ended_ = true;
}

bool Client::Take(const v1::GenerateResponse& response) {
  if (ended_) Violate("got a response after its end");
  if (options_.reads_only.has_value() &&
      num_responses_ >= *options_.reads_only) {
    too_slow_ = true;
    return false;
  }
  ++num_responses_;
  CheckPrompt(response);
  CheckTokens(response);
  text_ += response.text();
  last_ = response;
  return true;
}

void Client::CheckTokens(const v1::GenerateResponse& response) {
  const int with_logprobs =
      options_.answer.logprobs ? response.token_ids_size() : 0;
  if (response.logprobs_size() != with_logprobs) {
    Violate(absl::StrCat("got ", response.logprobs_size(),
                         " log-probabilities with ", response.token_ids_size(),
                         " tokens"));
    return;
  }
  for (int i = 0; i < response.token_ids_size(); ++i) {
    const auto token = static_cast<TokenId>(response.token_ids(i));
    const size_t index = num_tokens_++;
    if (index >= expected_.tokens.size()) {
      Violate("got more tokens than the answer has");
      return;
    }
    if (token != expected_.tokens[index]) {
      Violate(absl::StrCat("got token ", token, " at index ", index, " of ",
                           expected_.tokens.size(), ", right is ",
                           expected_.tokens[index]));
    }
    if (!options_.answer.logprobs) continue;
    std::vector<scheduling::TokenLogprob> top;
    for (const v1::TokenLogprob& t : response.logprobs(i).top()) {
      top.push_back({static_cast<TokenId>(t.id()), t.logprob()});
    }
    if (static_cast<TokenId>(response.logprobs(i).chosen().id()) != token ||
        top != ReferenceTop(options_.spec.sampling.seed,
                            static_cast<int32_t>(index), token,
                            options_.spec.top_logprobs)) {
      Violate(absl::StrCat("got other log-probabilities with token ", index));
    }
    coverage_->Add(Covered::kLogprobs);
  }
}

void Client::CheckPrompt(const v1::GenerateResponse& response) {
  if (response.prompt_logprobs_size() > 0 &&
      (num_tokens_ > 0 || response.token_ids_size() > 0)) {
    Violate("got log-probabilities of the prompt with the answer");
  }
  for (const v1::TokenLogprobs& token : response.prompt_logprobs()) {
    std::vector<scheduling::TokenLogprob> all = {
        {static_cast<TokenId>(token.chosen().id()), token.chosen().logprob()}};
    for (const v1::TokenLogprob& t : token.top()) {
      all.push_back({static_cast<TokenId>(t.id()), t.logprob()});
    }
    const size_t index = num_prompt_logprobs_++;
    if (index >= expected_prompt_.size() || all != expected_prompt_[index]) {
      Violate(absl::StrCat("got other log-probabilities of the prompt's token ",
                           index + 1));
    }
  }
}

void Client::TakeEnd(const absl::Status& status) {
  if (ended_) {
    Violate(absl::StrCat("ended twice, now with ", status.ToString()));
    return;
  }
  ended_ = true;
  journal_->Note("request ended", options_.number,
                 static_cast<uint64_t>(status.code()), num_tokens_);
  if (!status.ok()) {
    CheckCause(status);
    return;
  }
  coverage_->Add(Covered::kFinished);
  if (!options_.spec.adapter.empty()) coverage_->Add(Covered::kAdapted);
  if (last_.timing().retries() > 0)
    coverage_->Add(Covered::kFinishedAfterRetry);
  if (!expected_.stop.empty()) coverage_->Add(Covered::kStoppedByText);
  CheckWhole();
}

void Client::CheckWhole() {
  if (num_tokens_ != expected_.tokens.size()) {
    Violate(absl::StrCat("finished with ", num_tokens_, " of ",
                         expected_.tokens.size(), " tokens"));
    return;
  }
  if (num_prompt_logprobs_ != expected_prompt_.size()) {
    Violate(absl::StrCat("finished with ", num_prompt_logprobs_, " of ",
                         expected_prompt_.size(),
                         " log-probabilities of the prompt"));
  }
  if (!expected_prompt_.empty()) coverage_->Add(Covered::kPromptLogprobs);
  if (text_ != expected_.text || last_.stop() != expected_.stop) {
    Violate(absl::StrCat("got the text '", text_, "', stopped by '",
                         last_.stop(), "', right is '", expected_.text, "', '",
                         expected_.stop, "'"));
  }
  if (last_.finish_reason() != router::ToWire(expected_.reason)) {
    Violate(absl::StrCat("finished for reason ", last_.finish_reason()));
  }
}

void Client::CheckCause(const absl::Status& status) {
  // The router takes a cancel that is this near to the deadline for it.
  const absl::Duration slack =
      std::max(absl::Milliseconds(20), 0.01 * options_.time_limit);
  bool has_cause = false;
  switch (status.code()) {
    case absl::StatusCode::kCancelled:
      coverage_->Add(Covered::kCancelled);
      has_cause = cancelled_;
      break;
    case absl::StatusCode::kDeadlineExceeded:
      coverage_->Add(Covered::kDeadlinePassed);
      // Time enough for whatever else happens.
      has_cause =
          clock_->Now() + slack >= deadline_ &&
          (options_.time_limit < kLongTimeLimit || excuses_->lost_message);
      break;
    case absl::StatusCode::kUnavailable:
      coverage_->Add(Covered::kGaveUp);
      has_cause =
          excuses_->any_fault ||
          (excuses_->router_stood &&
           absl::StrContains(status.message(), "the router is silent")) ||
          // Each gave the others up, time after time.
          ((excuses_->router_stood || excuses_->worker_stood) &&
           absl::StrContains(status.message(), "worker can serve"));
      break;
    case absl::StatusCode::kResourceExhausted:
      has_cause = too_slow_;
      break;
    default:
      break;
  }
  if (!has_cause) {
    Violate(absl::StrCat("ended without a cause: ", status.ToString()));
  }
}

void Client::Violate(const std::string& what) {
  journal_->Violate(absl::StrCat("request ", options_.number, " ", what));
}

Client::Options DrawRequest(int number, bool alike, bool long_outputs,
                            const scheduling::RequestSpec* earlier,
                            Dice* dice) {
  constexpr int kPromptLengths[] = {1, 7, 15, 16, 17, 17, 24, 24, 32, 40};
  constexpr int kLimitsMs[] = {300, 1000, 3000};
  Client::Options options;
  options.number = number;
  scheduling::RequestSpec& spec = options.spec;
  spec.id = absl::StrCat("r", number);
  if (number % 2 == 1) {
    spec.traceparent =
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
  }
  if (number % 5 == 3) options.salt = number % 2 == 0 ? "a" : "b";
  if (number % 3 == 2) {
    spec.adapter = kAdapterIdentities[number % 2];
    options.salt = router::MakePrefixSalt(router::PrefixScope::kShared, "",
                                          options.salt, spec.adapter);
  }
  const int drawn = dice->Below(static_cast<int>(std::size(kPromptLengths)));
  const int length = alike ? kBlockSize + 1 : kPromptLengths[drawn];
  if (!alike && dice->Chance(0.75)) {
    spec.prompt = DrawBeginning(length, earlier, dice);
  }
  while (static_cast<int>(spec.prompt.size()) < length) {
    spec.prompt.push_back(dice->Below(kVocabSize));
  }
  spec.sampling.seed = dice->Word();
  spec.stop.max_output_tokens =
      dice->Chance(0.1) ? dice->Between(13, 24) : dice->Between(1, 12);
  if (long_outputs && dice->Chance(0.7)) {
    spec.stop.max_output_tokens = dice->Between(25, kMaxPosition - 40);
  }
  if (dice->Chance(0.3)) {
    // One that comes up, perhaps as the first.
    const std::vector<TokenId> output = ReferenceOutput(spec);
    spec.stop.stop_token_ids.push_back(
        output[dice->Below(static_cast<int>(output.size()))]);
    if (dice->Chance(0.3)) {
      spec.stop.min_output_tokens =
          dice->Between(1, spec.stop.max_output_tokens);
    }
  }
  if (dice->Chance(0.25)) options.answer.stop = DrawStops(spec, dice);
  options.answer.logprobs = dice->Chance(0.3);
  if (options.answer.logprobs) spec.top_logprobs = dice->Below(6);
  if (dice->Chance(0.2)) spec.prompt_logprobs = dice->Below(3);
  options.time_limit = dice->Chance(0.15)
                           ? absl::Milliseconds(kLimitsMs[dice->Below(3)])
                           : kLongTimeLimit;
  if (dice->Chance(0.03)) options.reads_only = dice->Below(4);
  // Whose turn it is; never what comes out.
  if (dice->Chance(0.25)) {
    options.answer.request_class = router::RequestClass::kBatch;
  }
  options.answer.priority = dice->Between(-1, 1);
  if (dice->Chance(0.5)) {
    options.answer.ttft_target = absl::Milliseconds(dice->Between(1, 200));
  }
  if (dice->Chance(0.5)) {
    options.answer.itl_target = absl::Milliseconds(dice->Between(1, 50));
  }
  return options;
}

}  // namespace baton::sim
