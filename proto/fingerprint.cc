#include "proto/fingerprint.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>
#include <google/protobuf/text_format.h>

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace baton::proto {

namespace {

// As kv_transfer::PageMap wants it.
bool BlockSizesFit(uint32_t a, uint32_t b) {
  const auto [smaller, larger] = std::minmax(a, b);
  return a == b || (smaller % 16 == 0 && smaller > 0 && larger % smaller == 0);
}

}  // namespace

std::string DescribeDifference(const v1::ModelFingerprint& here,
                               const v1::ModelFingerprint& there) {
  using google::protobuf::FieldDescriptor;
  using google::protobuf::TextFormat;
  // Reflection, so that a field added to the message is compared at once. Only
  // singular scalars are in it.
  const google::protobuf::Descriptor* type = here.GetDescriptor();
  std::vector<std::string> differences;
  for (int i = 0; i < type->field_count(); ++i) {
    const FieldDescriptor* field = type->field(i);
    if (field->number() == v1::ModelFingerprint::kBlockSizeFieldNumber &&
        BlockSizesFit(here.block_size(), there.block_size())) {
      continue;
    }
    std::string a, b;
    TextFormat::PrintFieldValueToString(here, field, -1, &a);
    TextFormat::PrintFieldValueToString(there, field, -1, &b);
    if (a != b) {
      differences.push_back(
          absl::StrCat(field->name(), " (", a, " here, ", b, " there)"));
    }
  }
  return absl::StrJoin(differences, "; ");
}

}  // namespace baton::proto
