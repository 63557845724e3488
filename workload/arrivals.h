// When requests come: an endless sequence of times, the same for the same seed
// on every machine (no library's distributions, which differ).
//
// One thread.
#pragma once

#include <cstdint>

#include "absl/time/time.h"

namespace baton::workload {

enum class ArrivalKind {
  kConstant,  // evenly
  kPoisson,   // independent clients
  kBursts,    // gaps of a gamma distribution: many at once, then none
};

struct ArrivalOptions {
  ArrivalKind kind = ArrivalKind::kPoisson;
  // Requests per second on average, > 0.
  double rate = 1;
  // Of kBursts: the coefficient of variation of the gaps, > 0; 1 is Poisson.
  double burstiness = 2;
  uint64_t seed = 1;
};

class Arrivals final {
 public:
  explicit Arrivals(const ArrivalOptions& options);

  // When the next request comes, from the start. The first one comes after a
  // gap, too.
  absl::Duration Next();

 private:
  double Uniform();  // in (0, 1)
  double Normal();
  double Gamma(double shape);

  const ArrivalOptions options_;
  uint64_t state_;
  double now_ = 0;  // seconds
};

}  // namespace baton::workload
