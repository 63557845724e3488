#include "batch/result_file.h"

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <optional>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "common/json.h"
#include "common/json_shape.h"
#include "common/json_text.h"
#include "common/status_macros.h"

namespace baton::batch {
namespace {

constexpr int kStatusOk = 200;
constexpr size_t kShownBytes = 200;  // of what is no JSON
constexpr JsonBounds kAnswerBounds = {.max_depth = 1024};

// A JSON text on one line: line ends stand between values only.
void AppendOnOneLine(absl::string_view json, std::string* out) {
  for (const char c : json) out->push_back(c == '\n' || c == '\r' ? ' ' : c);
}

bool IsJson(absl::string_view text) {
  return CheckJsonBounds(text, kAnswerBounds).ok() &&
         nlohmann::json::accept(text.begin(), text.end());
}

struct EarlierResult {
  std::string custom_id;
  int status = 0;
};

// Of a line; nothing when it is no result.
std::optional<EarlierResult> ReadResult(const std::string& line) {
  if (!CheckJsonBounds(line, kAnswerBounds).ok()) return std::nullopt;
  const nlohmann::json json =
      nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return std::nullopt;
  const auto id = json.find("custom_id");
  const auto response = json.find("response");
  if (id == json.end() || !id->is_string() || response == json.end()) {
    return std::nullopt;
  }
  EarlierResult result = {.custom_id = id->get<std::string>()};
  if (response->is_object()) {
    const auto status = response->find("status_code");
    if (status == response->end() || !status->is_number_integer()) {
      return std::nullopt;
    }
    result.status = status->get<int>();
  }
  return result;
}

}  // namespace

BatchAnswer CheckedAnswer(BatchAnswer answer) {
  if (answer.status == 0 || IsJson(answer.body)) return answer;
  return {.error_code = "invalid_answer",
          .error = absl::StrCat(
              "status ", answer.status, " with a body that is no JSON: ",
              absl::string_view(answer.body).substr(0, kShownBytes))};
}

std::string ResultLine(const BatchRequest& request, const BatchAnswer& answer) {
  std::string line = absl::StrCat("{\"id\": \"batch_req_", request.line,
                                  "\", \"custom_id\": ");
  AppendJsonString(request.custom_id, &line);
  if (answer.status > 0) {
    absl::StrAppend(&line, ", \"response\": {\"status_code\": ", answer.status,
                    ", \"request_id\": ");
    AppendJsonString(answer.request_id, &line);
    line += ", \"body\": ";
    AppendOnOneLine(answer.body, &line);
    line += "}, \"error\": null}\n";
  } else {
    line += ", \"response\": null, \"error\": {\"code\": ";
    AppendJsonString(answer.error_code, &line);
    line += ", \"message\": ";
    AppendJsonString(answer.error, &line);
    line += "}}\n";
  }
  return line;
}

absl::StatusOr<ResultFile> ResultFile::Create(const std::string& path) {
  std::error_code none;
  const bool empty = std::filesystem::file_size(path, none) == 0 && !none;
  BATON_ASSIGN_OR_RETURN(OutputFile file, empty ? OutputFile::Create(path)
                                                : OutputFile::CreateNew(path));
  return ResultFile(std::move(file));
}

absl::StatusOr<ResultFile> ResultFile::Resume(const std::string& path) {
  errno = 0;
  std::ifstream earlier(path, std::ios::binary);
  int error = earlier ? 0 : errno;
  if (error == ENOENT) return Create(path);
  std::error_code ignored;
  // Opening one does not fail.
  if (std::filesystem::is_directory(path, ignored)) error = EISDIR;
  if (error != 0) return FileError(error, "cannot read", path);
  const std::string beside = absl::StrCat(path, ".resumed");
  BATON_ASSIGN_OR_RETURN(OutputFile file, OutputFile::Create(beside));
  ResultFile results(std::move(file));
  const auto give_up = [&](absl::Status status) {
    std::remove(beside.c_str());
    return status;
  };
  std::string line;
  for (int64_t number = 1; std::getline(earlier, line); ++number) {
    // The last one has no end when it was cut short.
    if (earlier.eof()) break;
    const std::optional<EarlierResult> result = ReadResult(line);
    if (!result.has_value()) {
      return give_up(absl::InvalidArgumentError(
          absl::StrCat(path, ":", number, ": no result of a batch")));
    }
    if (result->status != kStatusOk) continue;
    line += '\n';
    if (!results.answered_.insert(result->custom_id).second) continue;
    if (absl::Status kept = results.Write(line); !kept.ok()) {
      return give_up(kept);
    }
  }
  if (earlier.bad()) {
    return give_up(absl::UnavailableError(absl::StrCat("cannot read ", path)));
  }
  if (absl::Status kept = results.file_.SyncAndDrop(); !kept.ok()) {
    return give_up(kept);
  }
  if (std::rename(beside.c_str(), path.c_str()) != 0) {
    return give_up(FileError(errno, "cannot replace", path));
  }
  return results;
}

absl::Status ResultFile::Write(absl::string_view line) {
  return file_.Write(line);
}

absl::Status ResultFile::Finish() {
  BATON_RETURN_IF_ERROR(file_.SyncAndDrop());
  return file_.Close();
}

}  // namespace baton::batch
