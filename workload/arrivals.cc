#include "workload/arrivals.h"

#include <cmath>
#include <numbers>

#include "common/log.h"
#include "workload/random.h"

namespace baton::workload {

Arrivals::Arrivals(const ArrivalOptions& options)
    : options_(options), state_(options.seed) {
  CHECK_GT(options.rate, 0);
  CHECK_GT(options.burstiness, 0);
}

double Arrivals::Uniform() {
  // 53 bits, never 0 or 1.
  return (static_cast<double>(NextRandom(&state_) >> 11) + 0.5) * 0x1p-53;
}

double Arrivals::Normal() {
  // Box and Muller (1958); the second number is not kept.
  return std::sqrt(-2 * std::log(Uniform())) *
         std::cos(2 * std::numbers::pi * Uniform());
}

// Marsaglia and Tsang, "A simple method for generating gamma variables" (2000);
// below a shape of 1 by their note in section 6.
double Arrivals::Gamma(double shape) {
  if (shape < 1) {
    return Gamma(shape + 1) * std::pow(Uniform(), 1 / shape);
  }
  const double d = shape - 1.0 / 3;
  const double c = 1 / std::sqrt(9 * d);
  while (true) {
    const double x = Normal();
    const double root = 1 + c * x;
    if (root <= 0) continue;
    const double v = root * root * root;
    if (std::log(Uniform()) < x * x / 2 + d - d * v + d * std::log(v)) {
      return d * v;
    }
  }
}

absl::Duration Arrivals::Next() {
  double gap = 1;  // on average
  switch (options_.kind) {
    case ArrivalKind::kConstant:
      break;
    case ArrivalKind::kPoisson:
      gap = -std::log(Uniform());
      break;
    case ArrivalKind::kBursts: {
      // A gamma distribution of mean 1 has the coefficient of variation
      // 1 / sqrt(shape).
      const double shape = 1 / (options_.burstiness * options_.burstiness);
      gap = Gamma(shape) / shape;
      break;
    }
  }
  now_ += gap / options_.rate;
  return absl::Seconds(now_);
}

}  // namespace baton::workload
