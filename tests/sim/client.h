// One client with one request: what it asks, what the right answer is, and
// whether what comes is that answer, each token once and in order, and then
// exactly one end, with a cause if it is not the whole answer.
//
// One thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "router/answer_options.h"
#include "router/client_stream.h"
#include "router/router_inbox.h"
#include "tests/sim/coverage.h"
#include "tests/sim/dice.h"
#include "tests/sim/expected_answer.h"
#include "tests/sim/journal.h"
#include "tests/sim/sim_clock.h"

namespace baton::sim {

class Client final {
 public:
  struct Options {
    int number = 0;
    scheduling::RequestSpec spec;
    router::AnswerOptions answer;
    // Shares prefixes with requests of the same one.
    std::string salt;
    absl::Duration time_limit;
    // Takes so many responses, then none any more.
    std::optional<int> reads_only;
  };

  // What has happened so far that may keep a request from its answer.
  struct Excuses {
    // A fault of any kind: for want of workers.
    bool any_fault = false;
    // A message of the data plane was lost or altered: nobody misses it before
    // the deadline.
    bool lost_message = false;
    // Time went on, but a router did not, for so long that workers miss it.
    bool router_stood = false;
    // The same of a worker.
    bool worker_stood = false;
  };

  // All outlive the client.
  Client(Options options, const SimClock* clock, Journal* journal,
         Coverage* coverage, const Excuses* excuses);

  // The request as a router gets it. Call once, and keep the client until the
  // router is gone.
  std::unique_ptr<router::IncomingRequest> Ask(router::RequestKey key);

  // It goes away: the router is told by the owner.
  void Cancel();
  // Its router died.
  void LoseRouter();

  bool asked() const { return asked_; }
  bool ended() const { return ended_; }
  bool cancelled() const { return cancelled_; }
  int number() const { return options_.number; }
  router::RequestKey key() const { return key_; }
  const scheduling::RequestSpec& spec() const { return options_.spec; }

 private:
  class Stream;

  // As in router::ClientStream.
  bool Take(const v1::GenerateResponse& response);
  void CheckTokens(const v1::GenerateResponse& response);
  void CheckPrompt(const v1::GenerateResponse& response);
  void TakeEnd(const absl::Status& status);
  void CheckWhole();
  void CheckCause(const absl::Status& status);
  void Violate(const std::string& what);

  const Options options_;
  const SimClock* const clock_;
  Journal* const journal_;
  Coverage* const coverage_;
  const Excuses* const excuses_;
  const ExpectedAnswer expected_;
  const std::vector<std::vector<scheduling::TokenLogprob>> expected_prompt_;

  router::RequestKey key_ = 0;
  absl::Time asked_at_;
  absl::Time deadline_;
  bool asked_ = false;
  bool cancelled_ = false;
  bool too_slow_ = false;
  bool router_lost_ = false;
  bool ended_ = false;
  size_t num_tokens_ = 0;
  size_t num_prompt_logprobs_ = 0;
  std::string text_;
  int num_responses_ = 0;
  v1::GenerateResponse last_;
};

// A request drawn at random, number `number` of its simulation. Lengths are
// drawn from few, so that one request's KV would fit another; `alike`: from
// one. Many prompts begin alike: with one of two texts, or with what `earlier`
// (if not null) asked and was answered; none that are `alike`. Some answers are
// ended by a stop string, some come with log-probabilities, of the prompt, too.
Client::Options DrawRequest(int number, bool alike, bool long_outputs,
                            const scheduling::RequestSpec* earlier, Dice* dice);

}  // namespace baton::sim
