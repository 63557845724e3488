// From the JSON of a conversation, as clients of the OpenAI API write it, to
// what a chat template is rendered with. Pure; any thread.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "baton/v1/inference.pb.h"
#include "router/served_model.h"

namespace baton::router {

// The prompt of `chat` for this model.
//
// InvalidArgument names the field ("messages[2].role must be a string"; also
// for content that is not text), gives the template's own complaint, or says
// which bound of a rendering the conversation would go beyond.
absl::StatusOr<std::string> RenderChat(const v1::ChatPrompt& chat,
                                       const ServedModel& model,
                                       absl::Time now);

}  // namespace baton::router
