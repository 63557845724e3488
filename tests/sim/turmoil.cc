#include "tests/sim/turmoil.h"

#include "tests/sim/dice.h"
#include "tests/sim/mix.h"

namespace baton::sim {

TurmoilPlan DrawTurmoil(uint64_t seed) {
  // Its own dice, so that a new kind of fault does not change the rest.
  Dice dice(Mix(seed, 1));
  TurmoilPlan plan;
  plan.steps = dice.Between(300, 1300);
  plan.num_requests = dice.Between(3, 12);
  plan.arrivals = dice.Between(1, plan.steps * 2 / 3);
  plan.turns = dice.Between(15, 45);
  plan.data_steps = dice.Between(15, 45);
  plan.control_steps = dice.Between(10, 30);
  plan.pauses = dice.Between(2, 14);
  plan.long_pause_ms = dice.Between(20, 900);
  // One run in eight knows no faults, and one in eight all of them.
  const int mood = dice.Below(8);
  const double share = mood == 0 ? 0.0 : mood == 1 ? 1.0 : 0.5;
  const auto rate = [&](double most) {
    const double value = most * dice.Below(1000) / 1000;
    return dice.Chance(share) ? value : 0.0;
  };
  plan.crash = rate(0.006);
  plan.stall = rate(0.006);
  plan.drain = rate(0.003);
  plan.stream_break = rate(0.006);
  plan.connection_break = rate(0.006);
  plan.cancel = rate(0.015);
  plan.release = 0.002 + rate(0.05);
  plan.release_copies = 0.005 + rate(0.05);
  plan.lose = rate(0.06);
  plan.repeat = rate(0.3);
  plan.hold = rate(0.25);
  plan.alter = rate(0.08);
  plan.slow_landing = rate(0.6);
  plan.copy_later = rate(0.4);
  plan.echoes = mood != 0 && dice.Chance(0.15);
  if (plan.echoes) {
    plan.copy_later = 0.95;
    // Rarely, so that they find their slot in other hands.
    plan.release_copies = 0.004 + 0.02 * dice.Below(1000) / 1000;
    plan.lose = plan.repeat = plan.hold = plan.alter = 0;
  }
  // The last draw, so that it changes none before.
  plan.role_change = 0.03 * dice.Below(1000) / 1000;
  return plan;
}

}  // namespace baton::sim
