// Workloads that were recorded: when requests came and how large they were.
//
// Any thread.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "workload/planned_request.h"

namespace baton::workload {

enum class TraceFormat {
  // Azure's LLM inference traces: a CSV file with the columns TIMESTAMP,
  // ContextTokens, GeneratedTokens.
  kAzure,
  // Mooncake's: a line of JSON for each request, with timestamp (ms),
  // input_length, output_length, and hash_ids of blocks of 512 tokens.
  kMooncake,
};

// By the file's name: ".csv" or ".jsonl". InvalidArgument for others.
absl::StatusOr<TraceFormat> TraceFormatOf(const std::string& path);

// The requests in the order of their times, the first one at 0. NotFound
// without the file; InvalidArgument naming file, line and field. At most a
// million requests.
absl::StatusOr<std::vector<PlannedRequest>> ReadTrace(const std::string& path,
                                                      TraceFormat format);

}  // namespace baton::workload
