#include "engine/json_file.h"

#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <set>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace baton::engine {
namespace {

using nlohmann::json;

// Whether brackets nest deeper than kMaxJsonDepth. Looked at before parsing, so
// that no document can cost memory or stack by nesting.
bool NestsTooDeep(absl::string_view text) {
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') {
        ++i;
      } else if (c == '"') {
        in_string = false;
      }
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      if (++depth > kMaxJsonDepth) return true;
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return false;
}

// Watches the keys while parsing: nlohmann_json keeps the last of two equal
// ones, and two readers of one file could then disagree on what it says.
class RepeatedKeyFinder {
 public:
  bool operator()(int depth, json::parse_event_t event, json& parsed) {
    switch (event) {
      case json::parse_event_t::object_start:
        keys_.resize(depth + 1);
        keys_[depth].clear();
        break;
      case json::parse_event_t::key: {
        // The depth of a key counts its object.
        auto& key = parsed.get_ref<const std::string&>();
        if (!keys_[depth - 1].insert(key).second) repeated_ = key;
        break;
      }
      case json::parse_event_t::object_end:
      case json::parse_event_t::array_start:
      case json::parse_event_t::array_end:
      case json::parse_event_t::value:
        break;
    }
    return true;
  }

  const std::optional<std::string>& repeated() const { return repeated_; }

 private:
  std::vector<std::set<std::string>> keys_;  // by depth
  std::optional<std::string> repeated_;
};

}  // namespace

absl::StatusOr<json> ParseJsonObject(absl::string_view text,
                                     absl::string_view name) {
  if (NestsTooDeep(text)) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": JSON nested more than ", kMaxJsonDepth, " deep"));
  }
  RepeatedKeyFinder finder;
  json root;
  try {
    root = json::parse(text.begin(), text.end(), std::ref(finder));
  } catch (const json::exception& e) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": not valid JSON: ", e.what()));
  }
  if (!root.is_object()) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": the JSON document is not an object"));
  }
  if (finder.repeated().has_value()) {
    return absl::InvalidArgumentError(absl::StrCat(
        name, ": ", JsonExcerpt(json(*finder.repeated())), " appears twice"));
  }
  return root;
}

absl::StatusOr<std::string> ReadBoundedFile(const std::string& path,
                                            int64_t max_bytes) {
  std::error_code error;
  const std::filesystem::file_status status =
      std::filesystem::status(path, error);
  if (!std::filesystem::exists(status)) {
    return absl::NotFoundError(absl::StrCat(path, ": no such file"));
  }
  // A pipe or a device could block or never end.
  if (!std::filesystem::is_regular_file(status)) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": not a regular file"));
  }
  std::ifstream in(path, std::ios::binary);
  if (!in) {
    return absl::NotFoundError(absl::StrCat(path, ": cannot be opened"));
  }
  std::string content;
  std::vector<char> buffer(size_t{64} << 10);
  while (in.read(buffer.data(), buffer.size()) || in.gcount() > 0) {
    content.append(buffer.data(), in.gcount());
    if (static_cast<int64_t>(content.size()) > max_bytes) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": larger than ", max_bytes, " bytes"));
    }
  }
  if (in.bad()) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": cannot be read"));
  }
  return content;
}

absl::StatusOr<json> ReadJsonObject(const std::string& path,
                                    int64_t max_bytes) {
  BATON_ASSIGN_OR_RETURN(const std::string text,
                         ReadBoundedFile(path, max_bytes));
  return ParseJsonObject(text, path);
}

std::string JsonExcerpt(const json& value) {
  constexpr size_t kMaxLength = 80;
  std::string text;
  try {
    text = value.dump(-1, ' ', /*ensure_ascii=*/true,
                      json::error_handler_t::replace);
  } catch (const json::exception& e) {
    return "(unprintable)";
  }
  if (text.size() > kMaxLength) {
    text.resize(kMaxLength);
    text += "...";
  }
  return text;
}

}  // namespace baton::engine
