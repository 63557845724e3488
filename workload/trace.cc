#include "workload/trace.h"

#include <algorithm>
#include <fstream>
#include <limits>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/json.h"
#include "common/status_macros.h"

namespace baton::workload {
namespace {

constexpr size_t kMaxRequests = 1'000'000;
constexpr int32_t kMooncakeBlock = 512;
constexpr int64_t kMaxTokens = 100'000'000;

// A line of a file, for errors.
struct Place {
  const std::string& path;
  size_t line;

  absl::Status Error(absl::string_view field, absl::string_view problem) const {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ":", line, ": ", field, " ", problem));
  }
};

// At least 1: servers take no empty prompts, and answer with a token.
absl::StatusOr<int32_t> Tokens(const Place& place, absl::string_view field,
                               int64_t value) {
  if (value < 0 || value > kMaxTokens) {
    return place.Error(
        field, absl::StrCat("is ", value, ", not in [0, ", kMaxTokens, "]"));
  }
  return static_cast<int32_t>(std::max<int64_t>(value, 1));
}

// A request with the time as the file has it.
struct Row {
  absl::Time at;
  PlannedRequest request;
};

absl::StatusOr<Row> ReadAzureRow(const Place& place, absl::string_view line) {
  const std::vector<absl::string_view> cells = absl::StrSplit(line, ',');
  if (cells.size() != 3) {
    return place.Error("the line", "does not have three cells");
  }
  Row row;
  std::string error;
  if (!absl::ParseTime("%Y-%m-%d %H:%M:%E*S", cells[0], &row.at, &error)) {
    return place.Error("TIMESTAMP", absl::StrCat("is no time: ", error));
  }
  int64_t prompt = 0, output = 0;
  if (!absl::SimpleAtoi(cells[1], &prompt)) {
    return place.Error("ContextTokens", "is no number");
  }
  if (!absl::SimpleAtoi(cells[2], &output)) {
    return place.Error("GeneratedTokens", "is no number");
  }
  BATON_ASSIGN_OR_RETURN(row.request.prompt_tokens,
                         Tokens(place, "ContextTokens", prompt));
  BATON_ASSIGN_OR_RETURN(row.request.output_tokens,
                         Tokens(place, "GeneratedTokens", output));
  return row;
}

absl::StatusOr<int64_t> Whole(const Place& place, const nlohmann::json& object,
                              const char* field) {
  const auto found = object.find(field);
  if (found == object.end()) return place.Error(field, "is missing");
  if (!found->is_number_integer()) {
    return place.Error(field, "is no whole number");
  }
  return found->get<int64_t>();
}

absl::StatusOr<Row> ReadMooncakeRow(const Place& place,
                                    absl::string_view line) {
  const nlohmann::json object = nlohmann::json::parse(
      line.begin(), line.end(), nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) return place.Error("the line", "is no JSON object");
  Row row;
  BATON_ASSIGN_OR_RETURN(const int64_t at, Whole(place, object, "timestamp"));
  if (at < 0 || at > std::numeric_limits<int32_t>::max()) {
    return place.Error("timestamp", "is not in [0, 2^31)");
  }
  row.at = absl::UnixEpoch() + absl::Milliseconds(at);
  BATON_ASSIGN_OR_RETURN(const int64_t prompt,
                         Whole(place, object, "input_length"));
  BATON_ASSIGN_OR_RETURN(row.request.prompt_tokens,
                         Tokens(place, "input_length", prompt));
  BATON_ASSIGN_OR_RETURN(const int64_t output,
                         Whole(place, object, "output_length"));
  BATON_ASSIGN_OR_RETURN(row.request.output_tokens,
                         Tokens(place, "output_length", output));
  const auto ids = object.find("hash_ids");
  if (ids == object.end()) return row;
  if (!ids->is_array()) return place.Error("hash_ids", "is no array");
  row.request.prefix_block = kMooncakeBlock;
  for (const nlohmann::json& id : *ids) {
    if (!id.is_number_unsigned()) {
      return place.Error("hash_ids", "has something that is no whole number");
    }
    row.request.prefix.push_back(id.get<uint64_t>());
  }
  return row;
}

}  // namespace

absl::StatusOr<TraceFormat> TraceFormatOf(const std::string& path) {
  if (absl::EndsWith(path, ".csv")) return TraceFormat::kAzure;
  if (absl::EndsWith(path, ".jsonl")) return TraceFormat::kMooncake;
  return absl::InvalidArgumentError(absl::StrCat(
      path, ": a trace is a .csv (Azure's columns) or .jsonl (Mooncake's)"));
}

absl::StatusOr<std::vector<PlannedRequest>> ReadTrace(const std::string& path,
                                                      TraceFormat format) {
  std::ifstream file(path);
  if (!file) return absl::NotFoundError(absl::StrCat("cannot open ", path));
  std::vector<Row> rows;
  std::string text;
  for (size_t line = 1; std::getline(file, text); ++line) {
    const Place place{path, line};
    const absl::string_view stripped = absl::StripAsciiWhitespace(text);
    if (stripped.empty()) continue;
    if (format == TraceFormat::kAzure && line == 1) {
      if (stripped == "TIMESTAMP,ContextTokens,GeneratedTokens") continue;
      return place.Error("the head",
                         "is not TIMESTAMP,ContextTokens,GeneratedTokens");
    }
    if (rows.size() == kMaxRequests) {
      return place.Error(
          "the trace", absl::StrCat("has more than ", kMaxRequests, " lines"));
    }
    BATON_ASSIGN_OR_RETURN(Row row, format == TraceFormat::kAzure
                                        ? ReadAzureRow(place, stripped)
                                        : ReadMooncakeRow(place, stripped));
    rows.push_back(std::move(row));
  }
  if (rows.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(path, " has no requests"));
  }
  std::stable_sort(rows.begin(), rows.end(),
                   [](const Row& a, const Row& b) { return a.at < b.at; });
  std::vector<PlannedRequest> requests;
  requests.reserve(rows.size());
  for (Row& row : rows) {
    row.request.at = row.at - rows.front().at;
    requests.push_back(std::move(row.request));
  }
  return requests;
}

}  // namespace baton::workload
