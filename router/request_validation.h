// From what a client sent to a RequestSpec that the cluster can run, or to an
// error that names the field. Pure; called on the threads of the front doors.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "baton/v1/inference.pb.h"
#include "router/access/key_file.h"
#include "router/adapter_names.h"
#include "router/answer_options.h"
#include "router/output_format/response_grammars.h"
#include "router/prompt_prefix.h"
#include "router/reasoning/reasoning_start.h"
#include "router/served_model.h"
#include "scheduling/request.h"

namespace baton::router {

struct RequestLimits {
  // Most tokens of one sequence: the model's, or less where the workers' pools
  // are smaller.
  int32_t max_context = 0;
  // The operator's cap on output tokens; 0: none.
  int32_t max_output_tokens = 0;
  ClassTargets targets;
  // Whether the workers keep answers to a grammar.
  bool takes_grammars = true;
  // LoRA adapters that may be asked for; null: none.
  const AdapterNames* adapters = nullptr;
  // Of the client's key; null: it may ask for everything.
  const KeyRights* rights = nullptr;
  // Where grammars are kept for the next request; null: nowhere.
  ResponseGrammars* grammars = nullptr;
  // For chat templates that show the date.
  absl::Time wall_time;
};

struct PreparedRequest {
  scheduling::RequestSpec spec;
  AnswerOptions answer;
  // Its salt is the client's; FrontDoor adds the rest.
  PromptPrefix prefix;
  // Whether the model may think before it answers: of conversations.
  ReasoningStart reasoning = ReasoningStart::kNone;
  // Of conversations with a model whose answers are messages: what the prompt
  // has begun of one (HarmonyOpening).
  std::optional<std::string> harmony_opening;
};

// How many log-probabilities of the prompt's own tokens it asks for, those of
// the likeliest in their places included.
int64_t NumPromptLogprobs(const scheduling::RequestSpec& spec);

// NotFound for a name that is neither the model's (nor empty, which means it)
// nor one of its adapters' (null: it has none), or is not there for the
// client's key: then without a word about others.
absl::Status CheckModelName(absl::string_view name, const ServedModel& model,
                            const AdapterNames* adapters,
                            const KeyRights& rights);

// `draw` gives a random number each time: for the id and the seed of a request
// that has none.
//
// InvalidArgument (the message starts with the field's name, and FieldOf gives
// it), or NotFound for another model. max_tokens is cut to the room that the
// context leaves.
absl::StatusOr<PreparedRequest> PrepareRequest(
    const v1::GenerateRequest& request, const ServedModel& model,
    const RequestLimits& limits, absl::FunctionRef<uint64_t()> draw);

}  // namespace baton::router
