// Reading JSON that came from outside: bounded in size and nesting, checked,
// and without exceptions. Used by the engine's loaders only.
//
// Pure functions, any thread.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/json.h"

namespace baton::engine {

// Most nested arrays and objects of a document.
inline constexpr int kMaxJsonDepth = 32;

// Parses `text`, whose root must be an object without repeated keys (deeper
// objects included). Errors are InvalidArgument and start with `name`.
absl::StatusOr<nlohmann::json> ParseJsonObject(absl::string_view text,
                                               absl::string_view name);

// The content of a regular file of at most `max_bytes`. NotFound or
// InvalidArgument, naming the path.
absl::StatusOr<std::string> ReadBoundedFile(const std::string& path,
                                            int64_t max_bytes);

// Both together.
absl::StatusOr<nlohmann::json> ReadJsonObject(const std::string& path,
                                              int64_t max_bytes);

// A value as it stands in the document, cut to a length fit for a message.
std::string JsonExcerpt(const nlohmann::json& value);

}  // namespace baton::engine
