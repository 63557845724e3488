// The work of `baton generate`: one streaming call, its text written as it
// comes.
#pragma once

#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "cli/format_flags.h"
#include "cli/router_connection.h"
#include "cli/sampling_flags.h"

namespace baton::cli {

struct GenerateOptions {
  RouterFlags router;
  std::string model;
  // Either of both.
  std::string prompt;
  std::vector<uint32_t> tokens;
  std::optional<uint32_t> max_tokens;
  SamplingFlags sampling;
  FormatFlags format;
  bool ignore_eos = false;
  std::string request_id;
  double timeout_seconds = 600;
  // Write the prompt before the text.
  bool echo = false;
  // Write each response as one line of JSON (proto3's mapping, field names as
  // in inference.proto) in place of text and summary.
  bool json = false;
  // No summary.
  bool quiet = false;
};

// Writes text to `out` and the summary and errors to `err`; returns the exit
// code. SIGINT or SIGTERM cancels the call. Blocks; one call per process at a
// time. REQUIRES: process::SetUpSignals was called.
int RunGenerate(const GenerateOptions& options, std::FILE* out, std::FILE* err);

}  // namespace baton::cli
