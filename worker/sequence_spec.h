// From the wire to the schedulers: a SequenceSpec, checked. Pure.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "baton/v1/worker.pb.h"
#include "engine/engine.h"
#include "scheduling/sequence.h"

namespace baton::worker {

// InvalidArgument names the field: no tokens, a token that the model does not
// have, a prompt length or an output bound that does not fit the tokens,
// sampling parameters out of range, stop tokens that leave nothing to sample,
// a trace context that is none, a target, class or priority that no router
// gives, a salt that is longer than any, log-probabilities of tokens that the
// prompt does not have. NotFound: an adapter that is none of `adapters`, which
// are by their places in the engine.
absl::StatusOr<std::unique_ptr<scheduling::Sequence>> MakeSequence(
    SequenceId id, const v1::SequenceSpec& spec, int32_t vocab_size,
    absl::Span<const engine::AdapterInfo> adapters = {});

// When an attempt that came `now` is given up; one that names no time has ten
// minutes.
absl::Time DeadlineOf(const v1::SequenceSpec& spec, absl::Time now);

}  // namespace baton::worker
