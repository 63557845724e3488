#include "proto/fingerprint.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace baton::proto {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

v1::ModelFingerprint Some() {
  v1::ModelFingerprint f;
  f.set_model_identity("abc");
  f.set_num_layers(6);
  f.set_block_size(16);
  return f;
}

TEST(FingerprintTest, EqualOnesDoNotDiffer) {
  EXPECT_EQ(DescribeDifference(Some(), Some()), "");
}

TEST(FingerprintTest, NamesEachFieldWithBothValues) {
  v1::ModelFingerprint other = Some();
  other.set_num_layers(8);
  other.set_model_identity("xyz");
  const std::string text = DescribeDifference(Some(), other);
  EXPECT_THAT(text, HasSubstr("num_layers (6 here, 8 there)"));
  EXPECT_THAT(text, HasSubstr("model_identity (\"abc\" here, \"xyz\" there)"));
  EXPECT_THAT(text, Not(HasSubstr("block_size")));
}

TEST(FingerprintTest, BlockSizesFitWhenOneIsAMultipleOfTheOther) {
  const auto difference = [](uint32_t here, uint32_t there) {
    v1::ModelFingerprint a = Some(), b = Some();
    a.set_block_size(here);
    b.set_block_size(there);
    return DescribeDifference(a, b);
  };
  EXPECT_EQ(difference(16, 128), "");
  EXPECT_EQ(difference(64, 32), "");
  EXPECT_EQ(difference(32, 48), "block_size (32 here, 48 there)");
  EXPECT_EQ(difference(24, 48), "block_size (24 here, 48 there)");
  EXPECT_EQ(difference(0, 16), "block_size (0 here, 16 there)");
}

// A field that is added to the message is compared without anyone's doing.
TEST(FingerprintTest, EveryFieldCounts) {
  const auto* type = v1::ModelFingerprint::descriptor();
  for (int i = 0; i < type->field_count(); ++i) {
    v1::ModelFingerprint other = Some();
    const auto* field = type->field(i);
    if (field->cpp_type() ==
        google::protobuf::FieldDescriptor::CPPTYPE_STRING) {
      other.GetReflection()->SetString(&other, field, "changed");
    } else {
      other.GetReflection()->SetUInt32(&other, field, 77);
    }
    EXPECT_THAT(DescribeDifference(Some(), other), HasSubstr(field->name()));
  }
}

}  // namespace
}  // namespace baton::proto
