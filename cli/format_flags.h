// The flags that say what an answer is to be. Any thread.
#pragma once

#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "absl/status/status.h"
#include "baton/v1/inference.pb.h"

namespace baton::cli {

// One of them at most.
struct FormatFlags {
  bool json_object = false;
  std::string json_schema_file;
  std::string regex;
  std::vector<std::string> choices;
};

void AddFormatFlags(CLI::App* app, FormatFlags* flags);

// Sets the request's format where there is one. Errors name the file.
absl::Status SetFormat(const FormatFlags& flags, v1::GenerateRequest* request);

}  // namespace baton::cli
