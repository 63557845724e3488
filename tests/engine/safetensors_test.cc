#include "engine/safetensors.h"

#include <sys/stat.h>

#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/engine/model_dir.h"
#include "tests/engine/mutation.h"

namespace baton::engine {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

absl::Span<const std::byte> BytesOf(const std::string& text) {
  return absl::MakeConstSpan(reinterpret_cast<const std::byte*>(text.data()),
                             text.size());
}

std::string Text(absl::Span<const std::byte> bytes) {
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

TEST(SafetensorsTest, ReadsTensors) {
  ModelDir dir;
  dir.Write("a.safetensors", Safetensors({{"w", "F32", {2, 1}, "12345678"},
                                          {"b", "BF16", {3}, "abcdef"},
                                          {"scalar", "I64", {}, "ABCDEFGH"},
                                          {"nothing", "F16", {0, 5}, ""}}));
  const auto file = SafetensorsFile::Open(dir.File("a.safetensors"));
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_EQ((*file)->tensors().size(), 4u);
  const TensorView* w = (*file)->Find("w");
  ASSERT_NE(w, nullptr);
  EXPECT_EQ(w->dtype, DType::kF32);
  EXPECT_THAT(w->shape, ElementsAre(2, 1));
  EXPECT_EQ(w->num_elements(), 2);
  EXPECT_EQ(Text(w->bytes), "12345678");
  EXPECT_EQ(w->file, dir.File("a.safetensors"));
  EXPECT_EQ(Text((*file)->Find("b")->bytes), "abcdef");
  EXPECT_THAT((*file)->Find("scalar")->shape, IsEmpty());
  EXPECT_EQ((*file)->Find("nothing")->num_elements(), 0);
  EXPECT_EQ((*file)->Find("c"), nullptr);
  EXPECT_EQ((*file)->Find("__metadata__"), nullptr);
}

TEST(SafetensorsTest, AnEmptyHeaderIsAFileWithoutTensors) {
  const std::string content = RawSafetensors("{}", "");
  const auto tensors = ParseSafetensors(BytesOf(content), "f");
  ASSERT_TRUE(tensors.ok()) << tensors.status();
  EXPECT_THAT(*tensors, IsEmpty());
}

struct BrokenHeader {
  std::string header;
  std::string data;
  std::string message;
};

TEST(SafetensorsTest, BrokenHeadersNameFileAndTensor) {
  const auto entry = [](const char* dtype, const char* shape,
                        const char* offsets) {
    return std::string("{\"dtype\":\"") + dtype + "\",\"shape\":" + shape +
           ",\"data_offsets\":" + offsets + "}";
  };
  const std::vector<BrokenHeader> cases = {
      {"", "", "not valid JSON"},
      {"not json", "", "not valid JSON"},
      {"[]", "", "not an object"},
      {"{\"t\":3}", "", "tensor \"t\": its header entry"},
      {"{\"__metadata__\":3}", "", "__metadata__ is not an object"},
      {"{\"t\":{\"shape\":[1],\"data_offsets\":[0,4]}}", "1234",
       "tensor \"t\": dtype is missing"},
      {"{\"t\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", "1234",
       "tensor \"t\": shape is missing"},
      {"{\"t\":{\"dtype\":\"F32\",\"shape\":[1]}}", "1234",
       "tensor \"t\": data_offsets is missing"},
      {"{\"t\":" + entry("F32", "[-1]", "[0,4]") + "}", "1234", "shape is"},
      {"{\"t\":" + entry("F32", "[1.0]", "[0,4]") + "}", "1234", "shape is"},
      {"{\"t\":" + entry("F32", "[1,1,1,1,1,1,1,1,1]", "[0,4]") + "}", "1234",
       "shape is missing or not a list of at most 8"},
      {"{\"t\":" + entry("F32", "[2]", "[0,4]") + "}", "1234",
       "tensor \"t\": shape [2] of F32 needs 8 bytes"},
      {"{\"t\":" + entry("F32", "[4611686018427387904,4]", "[0,0]") + "}", "",
       "needs more than 2^63 bytes"},
      {"{\"t\":" + entry("F32", "[4294967296,4294967296]", "[0,0]") + "}", "",
       "needs more than 2^63 bytes"},
      {"{\"t\":" + entry("F32", "[18446744073709551615]", "[0,4]") + "}",
       "1234", "shape is"},
      {"{\"t\":" + entry("F32", "[1]", "[0]") + "}", "1234", "data_offsets"},
      {"{\"t\":" + entry("F32", "[1]", "[4,0]") + "}", "1234", "data_offsets"},
      {"{\"t\":" + entry("F32", "[1]", "[-4,0]") + "}", "1234", "data_offsets"},
      {"{\"t\":" + entry("F32", "[1]", "[4,8]") + "}", "1234",
       "tensor \"t\": ends at byte 8 of the data, but the file has only 4"},
      {"{\"t\":" +
           entry("F32", "[1]",
                 "[9223372036854775803,"
                 "9223372036854775807]") +
           "}",
       "1234", "ends at byte 9223372036854775807"},
      {"{\"a\":" + entry("F32", "[1]", "[0,4]") +
           ",\"b\":" + entry("F32", "[1]", "[2,6]") + "}",
       "123456", "tensor \"b\": overlaps tensor \"a\""},
      {"{\"a\":" + entry("F32", "[1]", "[0,4]") +
           ",\"b\":" + entry("F32", "[1]", "[0,4]") + "}",
       "1234", "tensor \"b\": overlaps tensor \"a\""},
      {"{\"a\":" + entry("F32", "[1]", "[0,4]") +
           ",\"b\":" + entry("F32", "[1]", "[5,9]") + "}",
       "123456789", "the bytes from 4 on belong to no tensor"},
      {"{\"a\":" + entry("F32", "[1]", "[0,4]") + "}", "12345",
       "the tensors end at byte 4 of the data, but the file has 5"},
      {"{\"a\":" + entry("F32", "[1]", "[0,4]") +
           ",\"a\":" + entry("F32", "[1]", "[0,4]") + "}",
       "1234", "\"a\" appears twice"},
      {"{\"t\":" + std::string(100000, '['), "", "nested more than"},
  };
  for (const BrokenHeader& broken : cases) {
    const std::string content = RawSafetensors(broken.header, broken.data);
    const auto tensors = ParseSafetensors(BytesOf(content), "some/file");
    EXPECT_EQ(tensors.status().code(), absl::StatusCode::kInvalidArgument)
        << broken.header.substr(0, 200);
    EXPECT_THAT(tensors.status().message(),
                AllOf(HasSubstr("some/file"), HasSubstr(broken.message)));
  }
}

TEST(SafetensorsTest, UnknownTypesAreNamed) {
  const std::string content = RawSafetensors(
      "{\"t\":{\"dtype\":\"F4\",\"shape\":[1],\"data_offsets\":[0,1]}}", "1");
  const auto tensors = ParseSafetensors(BytesOf(content), "f");
  EXPECT_EQ(tensors.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(tensors.status().message(), HasSubstr("\"F4\""));
}

TEST(SafetensorsTest, BrokenLengths) {
  for (size_t size = 0; size < 8; ++size) {
    const std::string content(size, '\0');
    EXPECT_EQ(ParseSafetensors(BytesOf(content), "f").status().code(),
              absl::StatusCode::kInvalidArgument);
  }
  for (uint64_t length : {uint64_t{3}, uint64_t{1} << 31, uint64_t{1} << 62,
                          uint64_t{1} << 63, UINT64_MAX - 7, UINT64_MAX}) {
    std::string content = RawSafetensors("{}", "");
    std::memcpy(content.data(), &length, 8);
    const auto tensors = ParseSafetensors(BytesOf(content), "f");
    EXPECT_EQ(tensors.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(tensors.status().message(), HasSubstr("header has"));
  }
  // Longer than any header may be, and all there.
  const std::string large =
      RawSafetensors(std::string((size_t{32} << 20) + 1, ' '), "");
  EXPECT_THAT(ParseSafetensors(BytesOf(large), "f").status().message(),
              HasSubstr("more than"));
}

TEST(SafetensorsTest, EveryTruncationIsSeen) {
  const std::string content =
      Safetensors({{"a", "F32", {2}, "12345678"}, {"b", "BF16", {2}, "1234"}});
  for (size_t size = 0; size < content.size(); ++size) {
    // A copy of exactly this size, so that the sanitizer sees reads beyond it.
    const std::string cut = content.substr(0, size);
    EXPECT_FALSE(ParseSafetensors(BytesOf(cut), "f").ok()) << size;
  }
}

TEST(SafetensorsTest, FilesThatAreNone) {
  ModelDir dir;
  EXPECT_EQ(SafetensorsFile::Open(dir.File("none")).status().code(),
            absl::StatusCode::kNotFound);
  dir.Write("empty", "");
  EXPECT_EQ(SafetensorsFile::Open(dir.File("empty")).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(SafetensorsFile::Open(dir.path()).status().code(),
            absl::StatusCode::kInvalidArgument);
  // Must not wait for a writer.
  ASSERT_EQ(mkfifo(dir.File("pipe").c_str(), 0600), 0);
  EXPECT_EQ(SafetensorsFile::Open(dir.File("pipe")).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(SafetensorsTest, SurvivesDamage) {
  const std::string content =
      Safetensors({{"model.a", "F32", {2, 1}, "12345678"},
                   {"model.b", "BF16", {3}, "abcdef"},
                   {"model.c", "F16", {2, 2}, "ABCDEFGH"}});
  const std::string header = content.substr(8, content.find("}}") + 2 - 8);
  const std::string data = content.substr(8 + header.size());
  std::mt19937 random(4);
  int parsed = 0;
  for (int i = 0; i < 20000; ++i) {
    // Half with the length put right again, so that damage gets deep.
    const std::string damaged =
        random() % 2 == 0 ? RawSafetensors(Mutate(header, random), data)
                          : Mutate(content, random);
    const auto tensors = ParseSafetensors(BytesOf(damaged), "f");
    if (!tensors.ok()) {
      EXPECT_FALSE(tensors.status().message().empty());
      continue;
    }
    ++parsed;
    for (const TensorView& tensor : *tensors) {
      const std::byte* const begin = BytesOf(damaged).data();
      EXPECT_GE(tensor.bytes.data(), begin);
      EXPECT_LE(tensor.bytes.data() + tensor.bytes.size(),
                begin + damaged.size());
      // Touches every byte.
      EXPECT_EQ(Text(tensor.bytes).size(), tensor.bytes.size());
    }
  }
  EXPECT_GT(parsed, 0);
}

TEST(SafetensorsSetTest, TakesTheSingleFileFirst) {
  ModelDir dir;
  EXPECT_EQ(SafetensorsSet::Open(dir.path()).status().code(),
            absl::StatusCode::kNotFound);
  dir.Write("model.safetensors.index.json", "broken");
  EXPECT_EQ(SafetensorsSet::Open(dir.path()).status().code(),
            absl::StatusCode::kInvalidArgument);
  dir.Write("model.safetensors", Safetensors({{"a", "U8", {1}, "x"}}));
  const auto set = SafetensorsSet::Open(dir.path());
  ASSERT_TRUE(set.ok()) << set.status();
  EXPECT_EQ((*set)->num_tensors(), 1u);
  EXPECT_NE((*set)->Find("a"), nullptr);
  EXPECT_EQ((*set)->Find("b"), nullptr);
}

TEST(SafetensorsSetTest, ReadsShards) {
  ModelDir dir;
  dir.Write("one.safetensors",
            Safetensors({{"a", "U8", {1}, "x"}, {"unlisted", "U8", {1}, "z"}}));
  dir.Write("two.safetensors", Safetensors({{"b", "U8", {1}, "y"}}));
  const std::string index = "model.safetensors.index.json";
  dir.Write(index, R"({"metadata": {"total_size": 2}, "weight_map":
      {"a": "one.safetensors", "b": "two.safetensors"}})");
  const auto set = SafetensorsSet::Open(dir.path());
  ASSERT_TRUE(set.ok()) << set.status();
  EXPECT_EQ(Text((*set)->Find("a")->bytes), "x");
  EXPECT_EQ(Text((*set)->Find("b")->bytes), "y");
  EXPECT_EQ((*set)->Find("unlisted"), nullptr);

  dir.Write(index, R"({"weight_map": {"a": "two.safetensors"}})");
  auto broken = SafetensorsSet::Open(dir.path());
  EXPECT_EQ(broken.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(broken.status().message(),
              AllOf(HasSubstr("\"a\""), HasSubstr("two.safetensors")));

  dir.Write(index, R"({"weight_map": {"a": "three.safetensors"}})");
  broken = SafetensorsSet::Open(dir.path());
  EXPECT_EQ(broken.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(broken.status().message(),
              AllOf(HasSubstr("\"a\""), HasSubstr("three.safetensors")));
}

TEST(SafetensorsSetTest, ShardsStayInTheDirectory) {
  ModelDir outside;
  outside.Write("a.safetensors", Safetensors({{"a", "U8", {1}, "x"}}));
  ModelDir dir;
  const std::string name = outside.path().substr(outside.path().rfind('/') + 1);
  for (const std::string& shard :
       {outside.File("a.safetensors"), "../" + name + "/a.safetensors",
        std::string(".."), std::string("."), std::string(), std::string("x\\y"),
        std::string("a\0b", 3)}) {
    nlohmann::json index;
    index["weight_map"]["a"] = shard;
    dir.Write("model.safetensors.index.json", index.dump());
    const auto set = SafetensorsSet::Open(dir.path());
    EXPECT_EQ(set.status().code(), absl::StatusCode::kInvalidArgument) << shard;
    EXPECT_THAT(set.status().message(), HasSubstr("\"a\""));
  }
  for (const char* index :
       {"{}", "{\"weight_map\": []}", "{\"weight_map\": {\"a\": 3}}"}) {
    dir.Write("model.safetensors.index.json", index);
    EXPECT_EQ(SafetensorsSet::Open(dir.path()).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace baton::engine
