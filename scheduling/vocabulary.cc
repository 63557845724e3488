#include "scheduling/vocabulary.h"

#include <algorithm>
#include <optional>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/log.h"

namespace baton::scheduling {

Vocabulary::Vocabulary(std::vector<std::string> texts)
    : texts_(std::move(texts)) {
  CHECK(!texts_.empty());
  std::string all;
  for (const std::string& text : texts_) {
    absl::StrAppend(&all, text.size(), ":", text);
  }
  hash_ = StableHash(std::as_bytes(std::span(all)));
  for (TokenId token = 0; token < size(); ++token) {
    std::string& text = texts_[static_cast<size_t>(token)];
    if (text.size() > kMaxTokenBytes) text.clear();
    if (!text.empty()) tokens_.push_back(token);
  }
  // By text; of those with the same, the lowest first.
  std::sort(tokens_.begin(), tokens_.end(), [this](TokenId a, TokenId b) {
    const int order = text(a).compare(text(b));
    return order != 0 ? order < 0 : a < b;
  });
  std::vector<uint32_t> path;  // the nodes of the text before
  absl::string_view before;
  for (uint32_t i = 0; i < tokens_.size(); ++i) {
    const std::string& text = this->text(tokens_[i]);
    size_t shared = 0;
    while (shared < before.size() && shared < text.size() &&
           before[shared] == text[shared]) {
      ++shared;
    }
    for (size_t d = shared; d < path.size(); ++d) {
      nodes_[path[d]].end = static_cast<uint32_t>(nodes_.size());
    }
    path.resize(shared);
    for (size_t d = shared; d < text.size(); ++d) {
      path.push_back(static_cast<uint32_t>(nodes_.size()));
      nodes_.push_back({.byte = static_cast<uint8_t>(text[d]),
                        .depth = static_cast<uint16_t>(d),
                        .first_token = i});
    }
    before = text;
  }
  const auto end = static_cast<uint32_t>(nodes_.size());
  for (const uint32_t node : path) nodes_[node].end = end;
  nodes_.push_back(
      {.end = end + 1, .first_token = static_cast<uint32_t>(tokens_.size())});
}

std::optional<TokenId> Vocabulary::Longest(absl::string_view text) const {
  std::optional<TokenId> longest;
  // Nodes of one depth below the last one that matched: [at, end).
  size_t at = 0;
  size_t end = nodes_.size() - 1;
  for (const char c : text) {
    while (at < end && nodes_[at].byte != static_cast<uint8_t>(c)) {
      at = nodes_[at].end;
    }
    if (at >= end) break;
    if (nodes_[at].first_token < nodes_[at + 1].first_token) {
      longest = tokens_[nodes_[at].first_token];
    }
    end = nodes_[at].end;
    ++at;
  }
  return longest;
}

}  // namespace baton::scheduling
