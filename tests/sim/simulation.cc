#include "tests/sim/simulation.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "kv_transfer/wire.h"
#include "tests/sim/mix.h"

namespace baton::sim {

using Fate = kv_transfer::FakeNetwork::Fate;

Simulation::Simulation(uint64_t seed, kv_transfer::Fence removed_fence)
    : turmoil_(DrawTurmoil(seed)), world_(Mix(seed, 2)) {
  Dice& dice = world_.dice;
  plan_.num_routers = dice.Chance(0.4) ? 2 : 1;
  plan_.num_prefill = dice.Between(1, turmoil_.echoes ? 1 : 3);
  plan_.num_decode = dice.Between(1, turmoil_.echoes ? 2 : 3);
  plan_.prefill_blocks = dice.Between(3, 8);
  plan_.decode_blocks = dice.Between(4, 9);
  plan_.max_sequences = dice.Between(1, 4);
  plan_.token_budget = dice.Between(6, 64);
  plan_.max_transfers = dice.Between(1, turmoil_.echoes ? 2 : 4);
  plan_.inbox_capacity = dice.Between(2, 16);
  plan_.prefix_cache = dice.Chance(0.85);
  if (dice.Chance(0.5)) plan_.output_reserve = dice.Between(1, 6);
  // So long that one block ahead is not enough for all.
  plan_.long_outputs = dice.Chance(plan_.output_reserve > 0 ? 0.6 : 0.05);
  if (plan_.long_outputs) {
    plan_.decode_blocks = dice.Between(6, 8);
    plan_.max_sequences = dice.Between(3, 4);
  }
  if (dice.Chance(0.5)) plan_.swap_blocks = dice.Between(1, 12);
  plan_.swap_seconds = dice.Between(1, 20) / 10.0;
  plan_.removed_fence = removed_fence;
  // Dice of their own: runs without dual workers are what they were.
  Dice dual_dice(Mix(seed, 5));
  if (!turmoil_.echoes && dual_dice.Chance(0.35)) {
    plan_.num_dual = dual_dice.Between(1, 3);
    plan_.num_prefill = dual_dice.Below(2);
    plan_.num_decode = dual_dice.Below(2);
  }

  Dice stage_dice(Mix(seed, 6));
  const int longest = kMaxPosition / kBlockSize;
  if (stage_dice.Chance(0.3)) {
    plan_.prefill_staged_blocks = stage_dice.Between(longest, longest + 4);
  }
  if (stage_dice.Chance(0.3)) {
    plan_.decode_staged_blocks = stage_dice.Between(longest, longest + 4);
  }

  Dice offload_dice(Mix(seed, 7));
  if (plan_.prefix_cache && offload_dice.Chance(0.4)) {
    plan_.offload_places = offload_dice.Between(2, 24);
  }

  Dice draft_dice(Mix(seed, 8));
  if (draft_dice.Chance(0.4)) plan_.draft_tokens = draft_dice.Between(1, 8);
  plan_.draft_weights = draft_dice.Chance(0.5);

  world_.awake = [this](int party) { return Awake(party); };
  world_.data.reorder = true;
  world_.data.notice_apart = true;
  world_.data.judge = [this](kv_transfer::ByteSpan header, bool has_payload) {
    return Judge(header, has_payload);
  };
  world_.data.on_arrival = [this](const auto& arrival) { OnArrival(arrival); };

  for (int i = 0; i < plan_.num_routers; ++i) AddParty(Kind::kRouter, i);
  for (int i = 0; i < plan_.num_prefill; ++i) AddParty(Kind::kPrefill, i);
  for (int i = 0; i < plan_.num_decode; ++i) AddParty(Kind::kDecode, i);
  for (int i = 0; i < plan_.num_dual; ++i) AddParty(Kind::kDual, i);
  DrawQuestions();
}

Simulation::~Simulation() {
  for (Party& party : parties_) {
    party.router.reset();
    party.worker.reset();
  }
}

void Simulation::AddParty(Kind kind, int number) {
  Party party;
  party.kind = kind;
  party.place.party = static_cast<int>(parties_.size());
  switch (kind) {
    case Kind::kRouter:
      party.place.name = absl::StrCat("router-", number);
      break;
    case Kind::kPrefill:
      party.place.role = v1::WORKER_ROLE_PREFILL;
      party.place.name = absl::StrCat("prefill-", number);
      party.place.address = absl::StrCat("sim:", party.place.name);
      prefill_addresses_.push_back(party.place.address);
      break;
    case Kind::kDecode:
      party.place.role = v1::WORKER_ROLE_DECODE;
      party.place.name = absl::StrCat("decode-", number);
      party.place.address = absl::StrCat("sim:", party.place.name);
      party.place.data_address = absl::StrCat("fake:", party.place.name);
      decode_addresses_.push_back(party.place.address);
      break;
    case Kind::kDual:
      party.place.dual = true;
      party.place.name = absl::StrCat("dual-", number);
      party.place.address = absl::StrCat("sim:", party.place.name);
      party.place.data_address = absl::StrCat("fake:", party.place.name);
      prefill_addresses_.push_back(PrefillAddress(party.place));
      decode_addresses_.push_back(party.place.address);
      break;
  }
  // Not all are there at the start.
  party.down_until = world_.dice.Chance(0.8) ? 0 : world_.dice.Below(200);
  if (party.down_until > 0) excuses_.any_fault = true;
  parties_.push_back(std::move(party));
}

void Simulation::DrawQuestions() {
  for (int i = 0; i < turmoil_.num_requests; ++i) {
    Question question;
    const scheduling::RequestSpec* earlier =
        i == 0 ? nullptr : &questions_[world_.dice.Below(i)].client->spec();
    question.client = std::make_unique<Client>(
        DrawRequest(i, turmoil_.echoes, plan_.long_outputs, earlier,
                    &world_.dice),
        &world_.clock, &world_.journal, &world_.coverage, &excuses_);
    question.router = world_.dice.Below(plan_.num_routers);
    question.at_step = world_.dice.Below(turmoil_.arrivals);
    questions_.push_back(std::move(question));
  }
}

bool Simulation::Awake(int party) const {
  return parties_[party].up() && parties_[party].stalled_until <= step_;
}

std::optional<std::string> Simulation::Run() {
  for (; step_ < turmoil_.steps && !world_.journal.violation(); ++step_) {
    Wake();
    AskWhatIsDue();
    Step();
    Fault();
  }
  if (!world_.journal.violation()) BeQuiet();
  if (!world_.journal.violation()) CheckTheEnd();
  return world_.journal.violation();
}

// Who comes back, and who goes on.
void Simulation::Wake() {
  for (Party& party : parties_) {
    if (!party.up() && party.down_until <= step_) Start(party.place.party);
    if (party.worker != nullptr && party.stalled_until == step_) {
      party.worker->SetStalled(false);
    }
  }
}

void Simulation::AskWhatIsDue() {
  for (Question& question : questions_) {
    Party& party = parties_[question.router];
    if (question.client->asked() || question.at_step > step_ ||
        party.router == nullptr) {
      continue;
    }
    world_.journal.Note("request", question.client->number(),
                        question.client->spec().prompt.size());
    if (!party.router->Admit(question.client->Ask(++last_key_))) {
      question.client->LoseRouter();  // turned away at the door
    }
  }
}

void Simulation::Step() {
  Dice& dice = world_.dice;
  int roll =
      dice.Below(turmoil_.turns + turmoil_.data_steps + turmoil_.control_steps +
                 turmoil_.ticks + turmoil_.pauses);
  if ((roll -= turmoil_.turns) < 0) {
    Turn(dice.Below(static_cast<int>(parties_.size())));
  } else if ((roll -= turmoil_.data_steps) < 0) {
    world_.data.Step();
  } else if ((roll -= turmoil_.control_steps) < 0) {
    world_.control.Step();
  } else if ((roll -= turmoil_.ticks) < 0) {
    const int party = dice.Below(static_cast<int>(parties_.size()));
    if (Awake(party) && parties_[party].worker != nullptr) {
      parties_[party].worker->Tick();
    }
  } else {
    const bool is_long = dice.Chance(0.03);
    world_.clock.Advance(
        absl::Milliseconds(is_long ? dice.Between(1, turmoil_.long_pause_ms)
                                   : dice.Between(0, 5)));
  }
}

void Simulation::Fault() {
  Dice& dice = world_.dice;
  const int party = dice.Below(static_cast<int>(parties_.size()));
  if (dice.Chance(turmoil_.crash)) Crash(party);
  if (dice.Chance(turmoil_.stall)) Stall(party);
  if (dice.Chance(turmoil_.drain)) Drain(party);
  if (plan_.num_dual > 0 && dice.Chance(turmoil_.role_change)) {
    ChangeRole(party);
  }
  if (dice.Chance(turmoil_.stream_break)) {
    excuses_.any_fault = true;
    world_.control.BreakOne();
  }
  if (dice.Chance(turmoil_.connection_break) && world_.data.BreakConnection()) {
    excuses_.any_fault = true;
    world_.coverage.Add(Covered::kConnectionBroken);
    world_.journal.Note("connection breaks");
  }
  if (dice.Chance(turmoil_.cancel)) CancelSomebody();
  if (dice.Chance(turmoil_.release)) world_.data.Release();
  if (dice.Chance(turmoil_.release_copies)) world_.data.ReleaseCopies();
}

void Simulation::Start(int index) {
  Party& party = parties_[index];
  world_.journal.Note("starts", index);
  party.draining = false;
  party.stalled_until = 0;
  party.last_turn = world_.clock.Now();
  if (party.kind == Kind::kRouter) {
    party.router =
        std::make_unique<SimRouter>(index, party.place.name, prefill_addresses_,
                                    decode_addresses_, &world_);
  } else {
    party.worker = std::make_unique<SimWorker>(party.place, plan_, &world_);
  }
}

void Simulation::End(int index) {
  Party& party = parties_[index];
  party.router.reset();
  party.worker.reset();
  party.down_until = quiet_ ? 0 : step_ + 1 + world_.dice.Below(150);
  if (party.kind != Kind::kRouter) return;
  for (Question& question : questions_) {
    if (question.router == index) question.client->LoseRouter();
  }
}

void Simulation::Turn(int index) {
  if (!Awake(index)) return;
  Party& party = parties_[index];
  world_.journal.Note("turn", index);
  // Half a lease: what it sent before takes its time, too.
  const absl::Time now = world_.clock.Now();
  const bool stood = now - party.last_turn > kRouterLease / 2;
  party.last_turn = now;
  (party.router != nullptr ? excuses_.router_stood : excuses_.worker_stood) |=
      stood;
  if (party.router != nullptr) {
    party.router->Turn();
    return;
  }
  if (party.worker->Turn()) {
    party.worker->Check();
    return;
  }
  world_.journal.Note("drained", index);
  End(index);
}

void Simulation::Crash(int index) {
  Party& party = parties_[index];
  if (!party.up()) return;
  world_.journal.Note("crash", index);
  excuses_.any_fault = true;
  switch (party.kind) {
    case Kind::kRouter:
      world_.coverage.Add(Covered::kRouterCrash);
      break;
    case Kind::kPrefill:
      world_.coverage.Add(Covered::kPrefillCrash);
      break;
    case Kind::kDecode:
    case Kind::kDual:
      world_.coverage.Add(Covered::kDecodeCrash);
      break;
  }
  if (party.worker != nullptr) party.worker->Kill();
  End(index);
}

void Simulation::Stall(int index) {
  Party& party = parties_[index];
  if (!Awake(index)) return;
  excuses_.any_fault = true;
  world_.coverage.Add(Covered::kStall);
  party.stalled_until = step_ + 1 + world_.dice.Below(250);
  world_.journal.Note("stalls", index,
                      static_cast<uint64_t>(party.stalled_until));
  if (party.worker != nullptr) party.worker->SetStalled(true);
}

void Simulation::Drain(int index) {
  Party& party = parties_[index];
  if (party.worker == nullptr || party.draining) return;
  excuses_.any_fault = true;
  party.draining = true;
  world_.coverage.Add(Covered::kDrain);
  world_.journal.Note("drain", index);
  party.worker->RequestDrain();
}

void Simulation::ChangeRole(int index) {
  Party& party = parties_[index];
  if (party.kind != Kind::kDual || !Awake(index)) return;
  world_.coverage.Add(Covered::kRoleChange);
  world_.journal.Note("changes its role", index);
  party.worker->ChangeRole();
}

void Simulation::CancelSomebody() {
  Question& question =
      questions_[world_.dice.Below(static_cast<int>(questions_.size()))];
  Client& client = *question.client;
  if (!client.asked() || client.ended() || client.cancelled()) return;
  world_.journal.Note("client cancels", client.number());
  client.Cancel();
  parties_[question.router].router->ClientGone(client.key());
}

Fate Simulation::Judge(kv_transfer::ByteSpan header, bool has_payload) {
  if (quiet_) return Fate::kDeliver;
  Dice& dice = world_.dice;
  // A greeting that goes wrong ends the connection, and all the rest with it:
  // once in a while is enough.
  const auto message = kv_transfer::wire::Decode(header);
  CHECK(message.ok()) << message.status();
  const bool greets = std::holds_alternative<v1::PeerHello>(message->body) ||
                      std::holds_alternative<v1::PeerHelloReply>(message->body);
  if (greets && dice.Chance(0.9)) return Fate::kDeliver;
  Coverage& coverage = world_.coverage;
  const auto happens = [&](double rate, Covered what) {
    if (!dice.Chance(rate)) return false;
    coverage.Add(what);
    excuses_.any_fault = true;
    return true;
  };
  if (happens(turmoil_.lose, Covered::kMessageLost)) {
    excuses_.lost_message = true;
    return Fate::kDrop;
  }
  if (happens(turmoil_.repeat, Covered::kMessageTwice)) return Fate::kDuplicate;
  if (happens(turmoil_.hold, Covered::kMessageHeld)) return Fate::kHold;
  if (happens(turmoil_.alter, Covered::kMessageAltered)) {
    excuses_.lost_message = true;
    return Fate::kCorruptHeader;
  }
  if (has_payload && happens(turmoil_.alter, Covered::kPayloadAltered)) {
    return Fate::kCorruptPayload;
  }
  if (has_payload && happens(turmoil_.slow_landing, Covered::kSlowLanding)) {
    return Fate::kHoldLanding;
  }
  if (happens(turmoil_.copy_later, Covered::kLateCopy)) return Fate::kCopyLater;
  return Fate::kDeliver;
}

void Simulation::OnArrival(const kv_transfer::FakeNetwork::Arrival& arrival) {
  world_.journal.Note("arrival", -1, arrival.header.size(), arrival.accepted);
  if (arrival.late_copy && arrival.has_payload && !arrival.accepted) {
    world_.coverage.Add(Covered::kLateCopyDropped);
  }
  const auto message = kv_transfer::wire::Decode(arrival.header);
  if (!message.ok()) return;
  const auto check = [&](TransferId transfer, uint32_t generation) {
    if (world_.control.IsStale(transfer, generation)) {
      world_.coverage.Add(Covered::kStaleGeneration);
    }
  };
  if (const auto* kv = std::get_if<kv_transfer::wire::Kv>(&message->body)) {
    check(kv->transfer, kv->generation);
  } else if (const auto* commit =
                 std::get_if<kv_transfer::wire::Commit>(&message->body)) {
    check(commit->transfer, commit->generation);
  }
}

}  // namespace baton::sim
