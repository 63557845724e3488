// What CLI::Range should be for numbers with a point: it takes NaN for one that
// lies in every range.
#pragma once

#include <string>

#include <CLI/CLI.hpp>

namespace baton::cli {

// A number from `least` to `most`, both included.
CLI::Validator FiniteRange(double least, double most);

}  // namespace baton::cli
