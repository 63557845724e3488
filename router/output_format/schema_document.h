// A JSON schema as it was given: its text, checked against bounds, the schemas
// within it, and the words in which errors speak of them. One thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/json.h"

namespace baton::router {

// Its objects keep their members in the order of the text.
using SchemaJson = nlohmann::ordered_json;

// Of properties, or of whatever else an object in a schema has.
inline constexpr int kMaxSchemaMembers = 1024;
// The highest of the counts (minLength, maxItems...) that is known.
inline constexpr uint32_t kMaxSchemaCount = 1u << 16;

// As messages show what clients wrote: as JSON, cut if it is long.
std::string ShownInSchema(const SchemaJson& value);

// Two values as JSON Schema compares them: the order of members says nothing.
bool AreEqual(const SchemaJson& a, const SchemaJson& b);
std::string QuotedInSchema(absl::string_view text);

// A schema in a document, which must outlive it.
class SchemaNode final {
 public:
  const SchemaJson& value() const { return *value_; }
  // Counts the nodes of the document, from 0: the root's.
  size_t number() const { return number_; }
  // Where it stands, as a URI fragment: "#/properties/name". Cut if long.
  std::string Pointer() const;

  // Null if it is not there, or the schema is no object.
  const SchemaJson* Find(absl::string_view keyword) const;
  bool Has(absl::string_view keyword) const { return Find(keyword) != nullptr; }

  // What a keyword says; `fallback` where it is not there. Errors as below.
  absl::StatusOr<uint32_t> Count(absl::string_view keyword,
                                 uint32_t fallback) const;
  absl::StatusOr<bool> Bool(absl::string_view keyword, bool fallback) const;
  // Of an array of strings; empty where it is not there.
  absl::StatusOr<std::vector<absl::string_view>> Strings(
      absl::string_view keyword) const;

  // InvalidArgument "has "KEYWORD" at POINTER WHAT".
  absl::Status Invalid(absl::string_view keyword, absl::string_view what) const;
  // Unimplemented "has "KEYWORD" at POINTER, which Baton does not know", with
  // `what` before the comma.
  absl::Status Unknown(absl::string_view keyword,
                       absl::string_view what = "") const;
  // The same for a keyword that is known, but not together with `other`.
  absl::Status UnknownBeside(absl::string_view keyword,
                             absl::string_view other) const;

 private:
  friend class SchemaDocument;

  const SchemaJson* value_ = nullptr;
  size_t number_ = 0;
  // The schema that has this one for a keyword (or under a name or an index
  // there). Null: `keyword_` is the pointer.
  const SchemaNode* within_ = nullptr;
  absl::string_view keyword_;
  absl::string_view name_;
  int64_t index_ = -1;
};

class SchemaDocument final {
 public:
  // InvalidArgument, as WriteJsonSchema says, for what is not JSON, passes a
  // bound or has a name twice in one object.
  static absl::StatusOr<std::unique_ptr<SchemaDocument>> Parse(
      absl::string_view text);

  SchemaDocument(const SchemaDocument&) = delete;
  SchemaDocument& operator=(const SchemaDocument&) = delete;

  const SchemaNode* root() const { return &nodes_.front(); }

  // The schema that `of` has for a keyword, under a name there, or at an index.
  // The same value has the same node however it is reached. REQUIRES: it is
  // there.
  const SchemaNode* Child(const SchemaNode& of, absl::string_view keyword);
  const SchemaNode* Child(const SchemaNode& of, absl::string_view keyword,
                          absl::string_view name);
  const SchemaNode* Child(const SchemaNode& of, absl::string_view keyword,
                          size_t index);
  // What the $ref of `of` names. REQUIRES: it has one.
  absl::StatusOr<const SchemaNode*> Target(const SchemaNode& of);

  // The schema `value`, which was made of `of` and stands where that does, for
  // errors. The same text gives the same node.
  const SchemaNode* Derive(const SchemaNode& of, SchemaJson value);

  // What a reference names; null if that is not in this document.
  const SchemaJson* Follow(absl::string_view reference);

 private:
  SchemaDocument() = default;

  const SchemaJson* Find(absl::string_view reference) const;
  SchemaNode* NodeOf(const SchemaJson* value);
  const SchemaNode* Child(const SchemaNode& of, absl::string_view keyword,
                          const SchemaJson* value, absl::string_view name,
                          int64_t index);

  SchemaJson value_;
  std::deque<SchemaNode> nodes_;
  struct Derived {
    SchemaJson value;
    std::string pointer;
  };
  std::deque<Derived> derived_;
  absl::flat_hash_map<std::string, const SchemaNode*> derived_nodes_;
  absl::flat_hash_map<const SchemaJson*, SchemaNode*> node_of_;
  absl::flat_hash_map<std::string, const SchemaJson*> followed_;
};

}  // namespace baton::router
