// Simulation: the end of a run, when nothing goes wrong any more.
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/sim/simulation.h"

namespace baton::sim {
namespace {

// By then every deadline, lease and quarantine has run out.
constexpr absl::Duration kLongest = absl::Seconds(120);
// What is still to run out once every request has ended.
constexpr absl::Duration kAfterwards = absl::Seconds(8);

}  // namespace

void Simulation::BeQuiet() {
  quiet_ = true;
  world_.journal.Note("quiet");
  for (Party& party : parties_) {
    if (party.worker != nullptr) party.worker->SetStalled(false);
    party.stalled_until = 0;
    party.down_until = 0;
  }
  for (Question& question : questions_) question.at_step = 0;
  const absl::Time start = world_.clock.Now();
  for (int round = 0; !AllEnded() && !world_.journal.violation(); ++round) {
    if (world_.clock.Now() > start + kLongest) {
      world_.journal.Violate("a request never ended");
      return;
    }
    QuietRound(absl::Milliseconds(round < 40 ? 10 : 100));
  }
  const absl::Time ended = world_.clock.Now();
  while (world_.clock.Now() < ended + kAfterwards &&
         !world_.journal.violation()) {
    QuietRound(absl::Milliseconds(250));
  }
}

void Simulation::QuietRound(absl::Duration pause) {
  Wake();
  for (Party& party : parties_) {
    if (party.worker != nullptr) party.worker->BeWell();
  }
  AskWhatIsDue();
  world_.data.Release();
  world_.data.ReleaseCopies();
  for (int party = 0; party < static_cast<int>(parties_.size()); ++party) {
    Turn(party);
  }
  // Bounded: what makes work for ever would be found by the clock.
  for (int i = 0; i < 200 && world_.control.Step(); ++i) {
  }
  for (int i = 0; i < 200 && world_.data.Step(); ++i) {
  }
  for (Party& party : parties_) {
    if (party.worker != nullptr) party.worker->Tick();
  }
  world_.clock.Advance(pause);
}

bool Simulation::AllEnded() const {
  for (const Question& question : questions_) {
    if (!question.client->ended()) return false;
  }
  return true;
}

void Simulation::CheckTheEnd() {
  std::map<std::string, std::vector<const scheduling::PrefixCache*>> caches;
  for (const Party& party : parties_) {
    if (party.worker == nullptr) continue;
    caches[party.worker->name()] = party.worker->Prefixes();
  }
  for (const Party& party : parties_) {
    if (party.router != nullptr) {
      party.router->CheckNothingIsLeft();
      party.router->CheckPrefixes(caches);
    }
    if (party.worker != nullptr) party.worker->CheckNothingIsLeft();
  }
}

}  // namespace baton::sim
