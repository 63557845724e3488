// How fast the router's tokenizer is by itself, on one thread.
#pragma once

#include "common/json.h"

namespace baton::bench {

// A row for each tokenizer and text.
nlohmann::ordered_json MeasureTokenizing();

}  // namespace baton::bench
