#include "router/text/jinja/run.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "router/text/jinja/compare.h"

namespace baton::router::jinja {

absl::Status Error(absl::string_view what) {
  return absl::InvalidArgumentError(what);
}

Run::~Run() = default;

absl::Status Run::Spend(int64_t steps) {
  spent_ += steps;
  if (spent_ <= limits_.steps) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "the template does more than ", limits_.steps, " steps of work"));
}

absl::Status Run::CheckLength(uint64_t bytes) const {
  if (bytes <= limits_.string_bytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("the template makes a text of more than ",
                   limits_.string_bytes, " bytes"));
}

absl::Status Run::Hold(size_t bytes) {
  if (budget_.Hold(bytes)) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "the template's values need more than ", limits_.bytes, " bytes"));
}

absl::Status Run::CheckRoom(uint64_t count, uint64_t bytes) const {
  if (count <= limits_.bytes / bytes &&
      count * bytes + budget_.held() <= limits_.bytes) {
    return absl::OkStatus();
  }
  return absl::ResourceExhaustedError(absl::StrCat(
      "the template's values need more than ", limits_.bytes, " bytes"));
}

absl::StatusOr<Value> Run::String(std::string text, bool safe) {
  const size_t size = text.size();
  absl::Status status = CheckLength(size);
  if (status.ok()) status = SpendText(size);
  if (!status.ok()) return status;
  // From here on the string releases what it holds.
  auto rep = std::make_shared<const StringRep>(std::move(text), &budget_);
  status = Hold(size + kStringOverhead);
  if (!status.ok()) return status;
  return Value::Of(StringRef{std::move(rep), safe});
}

absl::StatusOr<Value> Run::Sequence(SequenceType type, Values items) {
  int depth = 0;
  for (const Value& item : items) depth = std::max(depth, item.depth());
  ++depth;
  if (depth > kMaxValueDepth) {
    return Error(absl::StrCat("lists and dicts are nested deeper than ",
                              kMaxValueDepth, " levels"));
  }
  absl::Status status = Spend(1 + static_cast<int64_t>(items.size() / 4));
  if (!status.ok()) return status;
  const size_t bytes = kOverhead + items.capacity() * sizeof(Value);
  auto rep = std::make_shared<const SequenceRep>(type, std::move(items), depth,
                                                 bytes, &budget_);
  status = Hold(bytes);
  if (!status.ok()) return status;
  return Value::Of(std::move(rep));
}

absl::StatusOr<Value> Run::Dict(std::vector<DictRep::Entry> entries) {
  uint64_t key_bytes = 0;
  for (const DictRep::Entry& entry : entries) {
    if (entry.first.is_string()) key_bytes += entry.first.text().size();
  }
  absl::Status status =
      Spend(1 + static_cast<int64_t>(entries.size() + key_bytes / 64));
  if (!status.ok()) return status;
  status = MergeEqualKeys(&entries);
  if (!status.ok()) return status;
  int depth = 0;
  for (const DictRep::Entry& entry : entries) {
    depth = std::max({depth, entry.first.depth(), entry.second.depth()});
  }
  ++depth;
  if (depth > kMaxValueDepth) {
    return Error(absl::StrCat("lists and dicts are nested deeper than ",
                              kMaxValueDepth, " levels"));
  }
  const size_t bytes = kOverhead + entries.size() * (sizeof(DictRep::Entry) +
                                                     2 * sizeof(uint64_t));
  auto rep = std::make_shared<const DictRep>(std::move(entries), depth, bytes,
                                             &budget_);
  status = Hold(bytes);
  if (!status.ok()) return status;
  return Value::Of(std::move(rep));
}

absl::Status Run::Enter() {
  if (++depth_ <= kMaxCallDepth) return absl::OkStatus();
  return Error(absl::StrCat(
      "maximum recursion depth exceeded: blocks, expressions and calls are "
      "nested deeper than ",
      kMaxCallDepth, " levels"));
}

}  // namespace baton::router::jinja
