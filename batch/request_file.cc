#include "batch/request_file.h"

#include <filesystem>
#include <iterator>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/json.h"
#include "common/json_shape.h"
#include "common/status_macros.h"

namespace baton::batch {
namespace {

using nlohmann::ordered_json;

// What is read recursively, and objects whose keys are looked for one by one.
constexpr JsonBounds kRequestBounds = {.max_depth = 256, .max_members = 16384};

constexpr absl::string_view kUrls[] = {
    "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"};

absl::StatusOr<std::string> TakeString(const ordered_json& json,
                                       const char* field) {
  const auto found = json.find(field);
  if (found == json.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", field, "\" is missing"));
  }
  if (!found->is_string()) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", field, "\" is no string"));
  }
  return found->get<std::string>();
}

absl::Status CheckUrl(const std::string& url) {
  std::string known;
  for (const absl::string_view one : kUrls) {
    if (url == one) return absl::OkStatus();
    absl::StrAppend(&known, known.empty() ? "" : ", ", one);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("\"url\" is \"", url, "\"; it may be ", known));
}

// Takes the next line without its end. False at the end of the file;
// InvalidArgument for one that is too long.
absl::StatusOr<bool> ReadLine(std::istream& in, std::string* line) {
  line->clear();
  std::streambuf& bytes = *in.rdbuf();
  for (int c = bytes.sbumpc(); c != std::char_traits<char>::eof();
       c = bytes.sbumpc()) {
    if (c == '\n') return true;
    if (static_cast<int64_t>(line->size()) >= kMaxLineBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("more than ", kMaxLineBytes, " bytes in a line"));
    }
    line->push_back(static_cast<char>(c));
  }
  return !line->empty();
}

}  // namespace

absl::StatusOr<BatchRequest> ParseRequestLine(absl::string_view text,
                                              int64_t number) {
  BATON_RETURN_IF_ERROR(CheckJsonBounds(text, kRequestBounds));
  const ordered_json json = ordered_json::parse(text, nullptr,
                                                /*allow_exceptions=*/false);
  if (!json.is_object()) return absl::InvalidArgumentError("no JSON object");
  BatchRequest request;
  request.line = number;
  BATON_ASSIGN_OR_RETURN(request.custom_id, TakeString(json, "custom_id"));
  if (request.custom_id.empty() ||
      request.custom_id.size() > kMaxCustomIdBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"custom_id\" has ", request.custom_id.size(),
                     " bytes; it may have 1 to ", kMaxCustomIdBytes));
  }
  if (json.contains("method")) {
    BATON_ASSIGN_OR_RETURN(const std::string method,
                           TakeString(json, "method"));
    if (method != "POST") {
      return absl::InvalidArgumentError(
          absl::StrCat("\"method\" is \"", method, "\"; it may be POST"));
    }
  }
  BATON_ASSIGN_OR_RETURN(request.url, TakeString(json, "url"));
  BATON_RETURN_IF_ERROR(CheckUrl(request.url));
  const auto body = json.find("body");
  if (body == json.end() || !body->is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "\"body\" is ", body == json.end() ? "missing" : "no object"));
  }
  const auto stream = body->find("stream");
  if (stream != body->end() && !stream->is_null() && *stream != false) {
    return absl::InvalidArgumentError(
        "\"body.stream\" is set; answers of a batch come whole");
  }
  request.body =
      body->dump(-1, ' ', false, ordered_json::error_handler_t::strict);
  return request;
}

absl::StatusOr<RequestFile> RequestFile::Open(const std::string& path) {
  std::error_code ignored;
  if (std::filesystem::exists(path, ignored) &&
      !std::filesystem::is_regular_file(path, ignored)) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " is no file: it is read twice"));
  }
  std::ifstream in(path, std::ios::binary);
  if (!in) return absl::NotFoundError(absl::StrCat("cannot read ", path));
  RequestFile file(path, std::move(in));
  while (true) {
    BATON_ASSIGN_OR_RETURN(const auto request, file.Next());
    if (!request.has_value()) break;
    ++file.size_;
    if (!file.custom_ids_.insert(request->custom_id).second) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ":", request->line, ": another line has the \"",
                       "custom_id\" \"", request->custom_id, "\", too"));
    }
  }
  file.in_.clear();
  file.in_.seekg(0);
  file.line_ = 0;
  return file;
}

absl::StatusOr<std::optional<BatchRequest>> RequestFile::Next() {
  std::string text;
  while (true) {
    ++line_;
    const auto error = [this](const absl::Status& status) {
      return absl::Status(status.code(), absl::StrCat(path_, ":", line_, ": ",
                                                      status.message()));
    };
    const absl::StatusOr<bool> more = ReadLine(in_, &text);
    if (!more.ok()) return error(more.status());
    if (!*more) return std::optional<BatchRequest>();
    if (absl::StripAsciiWhitespace(text).empty()) continue;
    absl::StatusOr<BatchRequest> request = ParseRequestLine(text, line_);
    if (!request.ok()) return error(request.status());
    return std::optional<BatchRequest>(*std::move(request));
  }
}

}  // namespace baton::batch
