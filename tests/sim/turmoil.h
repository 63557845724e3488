// How much goes wrong in one simulation, and how often its parties get their
// turns: drawn once from the seed, so that each run has a character. Pure.
#pragma once

#include <cstdint>

namespace baton::sim {

struct TurmoilPlan {
  int steps = 1000;
  int num_requests = 6;
  // Steps within which all requests come.
  int arrivals = 400;

  // Shares of events.
  int turns = 30;
  int data_steps = 30;
  int control_steps = 20;
  int ticks = 5;
  int pauses = 10;
  // How long the longer pauses are, in ms.
  int long_pause_ms = 200;

  // Per step.
  double crash = 0;
  double stall = 0;
  double drain = 0;
  double stream_break = 0;
  double connection_break = 0;
  double cancel = 0;
  double role_change = 0;
  // What was held is released; late copies arrive.
  double release = 0.01;
  double release_copies = 0.01;

  // Everything comes a second time, to requests that are alike and share few
  // transfer slots: where an old message would fit best.
  bool echoes = false;

  // Per message of the data plane.
  double lose = 0;
  double repeat = 0;
  double hold = 0;
  double alter = 0;
  double slow_landing = 0;
  double copy_later = 0;
};

TurmoilPlan DrawTurmoil(uint64_t seed);

}  // namespace baton::sim
