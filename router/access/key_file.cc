#include "router/access/key_file.h"

#include <openssl/rand.h>
#include <openssl/sha.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/log.h"
#include "common/status_macros.h"

namespace baton::router {
namespace {

constexpr char kPrefix[] = "sk-baton-";
constexpr char kKeyStart[] = "sk-";
constexpr char kHashPrefix[] = "sha256:";
// Of tokens a minute: more than a cluster makes.
constexpr int64_t kMaxLimit = 1'000'000'000'000;

// Of a key or a tenant; `field` is which.
absl::Status CheckName(absl::string_view field, absl::string_view name) {
  if (absl::StartsWith(name, kKeyStart)) {
    // Not quoted, and names are shown: this is a key, or looks like one.
    return absl::InvalidArgumentError(
        absl::StrCat(field, ": begins with \"", kKeyStart, "\", as keys do"));
  }
  const bool ok =
      !name.empty() && name.size() <= kMaxKeyNameBytes &&
      std::all_of(name.begin(), name.end(), [](char c) {
        return absl::ascii_isalnum(c) || c == '.' || c == '_' || c == '-';
      });
  if (ok) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      field, ": \"", absl::CHexEscape(name.substr(0, kMaxKeyNameBytes)),
      "\" is not 1 to ", kMaxKeyNameBytes,
      " letters, digits, '.', '_' or '-'"));
}

absl::StatusOr<KeyHash> ParseHash(absl::string_view text) {
  const bool is_hash = absl::ConsumePrefix(&text, kHashPrefix) &&
                       text.size() == 2 * KeyHash().size() &&
                       std::all_of(text.begin(), text.end(), [](char c) {
                         return absl::ascii_isxdigit(c);
                       });
  if (!is_hash) {
    // Not quoted: somebody may have put the key itself there.
    return absl::InvalidArgumentError(
        "hash: is not sha256: and 64 hexadecimal digits");
  }
  const std::string bytes = absl::HexStringToBytes(text);
  KeyHash hash;
  std::copy(bytes.begin(), bytes.end(), hash.begin());
  return hash;
}

// "field=N" into the field of that name; the `number`th of the line.
absl::Status ParseLimit(absl::string_view text, size_t number,
                        KeyLimits* limits, std::set<std::string>* given) {
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(text, absl::MaxSplits('=', 1));
  const std::string field(parts.first);
  int64_t largest = kMaxLimit;
  if (field == "max-concurrent" || field == "max-tokens") {
    largest = std::numeric_limits<int32_t>::max();
  } else if (field == "weight") {
    largest = kMaxKeyWeight;
  }
  const std::map<std::string, int64_t*> rates = {
      {"requests-per-minute", &limits->requests_per_minute},
      {"tokens-per-minute", &limits->tokens_per_minute}};
  const std::map<std::string, int32_t*> counts = {
      {"max-concurrent", &limits->max_concurrent},
      {"max-tokens", &limits->max_tokens},
      {"weight", &limits->weight}};
  if (rates.count(field) + counts.count(field) == 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "field ", number,
        ": is none of max-concurrent=N, requests-per-minute=N, "
        "tokens-per-minute=N, max-tokens=N, weight=N, max-priority=N, "
        "class=batch, models=NAME,NAME, tenant=NAME"));
  }
  if (!given->insert(field).second) {
    return absl::InvalidArgumentError(absl::StrCat(field, ": is given twice"));
  }
  int64_t value = 0;
  if (!absl::SimpleAtoi(parts.second, &value) || value < 1 || value > largest) {
    return absl::InvalidArgumentError(
        absl::StrCat(field, ": \"",
                     absl::CHexEscape(parts.second.substr(0, kMaxKeyNameBytes)),
                     "\" is not a whole number from 1 to ", largest));
  }
  if (const auto it = rates.find(field); it != rates.end()) {
    *it->second = value;
  } else {
    *counts.at(field) = static_cast<int32_t>(value);
  }
  return absl::OkStatus();
}

absl::StatusOr<int32_t> ParsePriority(absl::string_view text) {
  int32_t priority = 0;
  if (absl::SimpleAtoi(text, &priority) && priority >= -kMaxKeyPriority &&
      priority <= kMaxKeyPriority) {
    return priority;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "max-priority: \"", absl::CHexEscape(text.substr(0, kMaxKeyNameBytes)),
      "\" is not a whole number from -", kMaxKeyPriority, " to ",
      kMaxKeyPriority));
}

absl::StatusOr<std::vector<std::string>> ParseModels(absl::string_view text) {
  std::vector<std::string> models = absl::StrSplit(text, ',');
  if (models.size() > kMaxKeyModels) {
    return absl::InvalidArgumentError(
        absl::StrCat("models: more than ", kMaxKeyModels, " names"));
  }
  for (const std::string& model : models) {
    const bool printable = std::all_of(
        model.begin(), model.end(), [](char c) { return c > ' ' && c <= '~'; });
    if (model.empty() || model.size() > kMaxKeyModelBytes || !printable) {
      return absl::InvalidArgumentError(absl::StrCat(
          "models: \"", absl::CHexEscape(model.substr(0, kMaxKeyModelBytes)),
          "\" is not 1 to ", kMaxKeyModelBytes,
          " printable characters without spaces"));
    }
  }
  std::sort(models.begin(), models.end());
  models.erase(std::unique(models.begin(), models.end()), models.end());
  return models;
}

// A field that is no limit: whether it is one, which is then taken.
absl::StatusOr<bool> ParseRight(absl::string_view field, KeyEntry* entry,
                                std::set<std::string>* given) {
  const std::pair<std::string, absl::string_view> parts =
      absl::StrSplit(field, absl::MaxSplits('=', 1));
  const auto& [name, value] = parts;
  const bool is_right = name == "tenant" || name == "max-priority" ||
                        name == "class" || name == "models";
  if (!is_right) return false;
  if (!given->insert(name).second) {
    return absl::InvalidArgumentError(absl::StrCat(name, ": is given twice"));
  }
  if (name == "tenant") {
    BATON_RETURN_IF_ERROR(CheckName("tenant", value));
    entry->tenant = std::string(value);
  } else if (name == "max-priority") {
    BATON_ASSIGN_OR_RETURN(entry->rights.max_priority, ParsePriority(value));
  } else if (name == "models") {
    BATON_ASSIGN_OR_RETURN(entry->rights.models, ParseModels(value));
  } else if (value == "batch") {
    entry->rights.batch_only = true;
  } else {
    return absl::InvalidArgumentError(absl::StrCat(
        "class: \"", absl::CHexEscape(value.substr(0, kMaxKeyNameBytes)),
        "\" is not batch"));
  }
  return true;
}

absl::StatusOr<KeyEntry> ParseLine(absl::string_view line) {
  const std::vector<absl::string_view> fields =
      absl::StrSplit(line, absl::ByAnyChar(" \t"), absl::SkipEmpty());
  KeyEntry entry;
  entry.name = std::string(fields[0]);
  BATON_RETURN_IF_ERROR(CheckName("name", entry.name));
  BATON_ASSIGN_OR_RETURN(entry.hash,
                         ParseHash(fields.size() > 1 ? fields[1] : ""));
  std::set<std::string> given;
  for (size_t i = 2; i < fields.size(); ++i) {
    BATON_ASSIGN_OR_RETURN(const bool is_right,
                           ParseRight(fields[i], &entry, &given));
    if (is_right) continue;
    BATON_RETURN_IF_ERROR(ParseLimit(fields[i], i + 1, &entry.limits, &given));
  }
  return entry;
}

}  // namespace

bool KeyRights::HasModel(absl::string_view name) const {
  return models.empty() ||
         std::binary_search(models.begin(), models.end(), name,
                            std::less<absl::string_view>());
}

const std::string& TenantOf(const KeyEntry& entry) {
  return entry.tenant.empty() ? entry.name : entry.tenant;
}

KeyHash HashKey(absl::string_view key) {
  KeyHash hash;
  SHA256(reinterpret_cast<const uint8_t*>(key.data()), key.size(), hash.data());
  return hash;
}

std::string NewKey() {
  std::array<uint8_t, 32> bits;
  CHECK_EQ(RAND_bytes(bits.data(), static_cast<int>(bits.size())), 1)
      << "the machine has no random bits";
  std::string text;
  absl::WebSafeBase64Escape(
      absl::string_view(reinterpret_cast<const char*>(bits.data()),
                        bits.size()),
      &text);
  return absl::StrCat(kPrefix, text);
}

absl::StatusOr<std::vector<KeyEntry>> ParseKeyFile(absl::string_view text,
                                                   const std::string& file) {
  std::vector<KeyEntry> entries;
  std::map<std::string, int> lines_of_names;
  std::map<KeyHash, int> lines_of_hashes;
  int number = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    line = absl::StripAsciiWhitespace(line.substr(0, line.find('#')));
    if (line.empty()) continue;
    const auto wrong = [&](absl::string_view what) {
      return absl::InvalidArgumentError(
          absl::StrCat(file, ":", number, ": ", what));
    };
    absl::StatusOr<KeyEntry> entry = ParseLine(line);
    if (!entry.ok()) return wrong(entry.status().message());
    const auto [name, new_name] = lines_of_names.insert({entry->name, number});
    if (!new_name) {
      return wrong(absl::StrCat("name: \"", entry->name, "\" is also in line ",
                                name->second));
    }
    const auto [hash, new_hash] = lines_of_hashes.insert({entry->hash, number});
    if (!new_hash) {
      return wrong(absl::StrCat("hash: is the same as in line ", hash->second));
    }
    if (entries.size() == kMaxKeys) {
      return wrong(absl::StrCat("more than ", kMaxKeys, " keys"));
    }
    entries.push_back(*std::move(entry));
  }
  if (entries.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        file,
        " has no key: nobody could use the router; make one with `baton "
        "key NAME`"));
  }
  return entries;
}

std::string FormatKeyLine(const KeyEntry& entry) {
  std::string line =
      absl::StrCat(entry.name, " ", kHashPrefix,
                   absl::BytesToHexString(absl::string_view(
                       reinterpret_cast<const char*>(entry.hash.data()),
                       entry.hash.size())));
  const auto add = [&](const char* field, int64_t value) {
    if (value > 0) absl::StrAppend(&line, " ", field, "=", value);
  };
  add("max-concurrent", entry.limits.max_concurrent);
  add("requests-per-minute", entry.limits.requests_per_minute);
  add("tokens-per-minute", entry.limits.tokens_per_minute);
  add("max-tokens", entry.limits.max_tokens);
  add("weight", entry.limits.weight);
  if (entry.rights.max_priority.has_value()) {
    absl::StrAppend(&line, " max-priority=", *entry.rights.max_priority);
  }
  if (entry.rights.batch_only) absl::StrAppend(&line, " class=batch");
  if (!entry.rights.models.empty()) {
    absl::StrAppend(&line, " models=", absl::StrJoin(entry.rights.models, ","));
  }
  if (!entry.tenant.empty()) absl::StrAppend(&line, " tenant=", entry.tenant);
  return line;
}

}  // namespace baton::router
