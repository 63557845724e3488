// The small named integers that cross folders. Plain aliases where arithmetic
// is natural (tokens, blocks); enum classes where mixing two up would be a bug.
#pragma once

#include <cstdint>

namespace baton {

// An entry of the model's vocabulary, >= 0.
using TokenId = int32_t;

// A KV block of one worker's block pool, 0 <= id < pool size.
using BlockId = int32_t;

// One sequence on one worker. Given by that worker, never reused within the
// life of its process.
enum class SequenceId : uint64_t {};

// One hand-off into one decode worker. Given by the decode worker, never reused
// within its incarnation.
enum class TransferId : uint64_t {};

// One life of one process: random, drawn at start. A restarted worker has
// another one, so that its old messages find no owner.
enum class Incarnation : uint64_t {};

}  // namespace baton
