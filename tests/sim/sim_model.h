// The model that all of a simulation serve: the simulated engine's shape, and
// the words of a small real tokenizer. Loaded once per process.
#pragma once

#include "router/served_model.h"

namespace baton::sim {

const router::ServedModel& SimModel();

}  // namespace baton::sim
