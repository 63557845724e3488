// One request as an operator wants to see it: where it was placed and why, and
// where its time went. Pure.
#pragma once

#include <string>

#include "baton/v1/inference.pb.h"

namespace baton::cli {

// Lines of text, safe for a terminal.
std::string FormatExplanation(const v1::ExplainRequestResponse& request);

}  // namespace baton::cli
