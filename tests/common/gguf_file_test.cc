#include "common/gguf/gguf_file.h"

#include <cmath>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/engine/model_dir.h"
#include "tests/engine/mutation.h"
#include "tests/support/gguf_writer.h"

namespace baton::gguf {
namespace {

using test::GgufWriter;
using test::NumberBytes;
using test::StringBytes;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

absl::Span<const std::byte> Bytes(const std::string& text) {
  return absl::MakeConstSpan(reinterpret_cast<const std::byte*>(text.data()),
                             text.size());
}

std::string Text(absl::Span<const std::byte> bytes) {
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

absl::Status ParseError(const std::string& content) {
  return GgufFile::Parse(Bytes(content), "f.gguf").status();
}

// A file with a value of each type and two tensors.
std::string Example(uint32_t version = 3) {
  GgufWriter writer(version);
  writer.AddRaw("u8", 0, NumberBytes<uint8_t>(200));
  writer.AddRaw("i8", 1, NumberBytes<int8_t>(-100));
  writer.AddRaw("u16", 2, NumberBytes<uint16_t>(60000));
  writer.AddRaw("i16", 3, NumberBytes<int16_t>(-30000));
  writer.AddUint32("u32", 4000000000u);
  writer.AddRaw("i32", 5, NumberBytes<int32_t>(-2000000000));
  writer.AddFloat("f32", 0.5f);
  writer.AddBool("yes", true);
  writer.AddString("name", "a model");
  writer.AddRaw("u64", 10, NumberBytes<uint64_t>(~uint64_t{0}));
  writer.AddRaw("i64", 11, NumberBytes<int64_t>(-5));
  writer.AddRaw("f64", 12, NumberBytes<double>(0.25));
  writer.AddStrings("words", {"one", "", "three"});
  writer.AddInts("ints", {1, -2, 3});
  writer.AddFloats("floats", {1.5f, -2.5f});
  // Two arrays, of one byte and of none.
  writer.AddRaw("arrays", 9,
                NumberBytes<uint32_t>(9) + NumberBytes<uint64_t>(2) +
                    NumberBytes<uint32_t>(0) + NumberBytes<uint64_t>(1) + "x" +
                    NumberBytes<uint32_t>(8) + NumberBytes<uint64_t>(0));
  writer.AddTensor("w", kF32, {2, 3}, std::string(24, 'w'));
  writer.AddTensor("q", kQ8_0, {2, 64}, std::string(2 * 2 * 34, 'q'));
  return writer.Finish();
}

TEST(GgufFileTest, ReadsMetadata) {
  for (const uint32_t version : {2u, 3u}) {
    const std::string content = Example(version);
    const auto parsed = GgufFile::Parse(Bytes(content), "f.gguf");
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    const GgufFile& file = **parsed;
    const auto integer = [&](const char* key) {
      return *file.Integer(key, std::numeric_limits<int64_t>::min(),
                           std::numeric_limits<int64_t>::max());
    };
    EXPECT_EQ(integer("u8"), 200);
    EXPECT_EQ(integer("i8"), -100);
    EXPECT_EQ(integer("u16"), 60000);
    EXPECT_EQ(integer("i16"), -30000);
    EXPECT_EQ(integer("u32"), 4000000000);
    EXPECT_EQ(integer("i32"), -2000000000);
    EXPECT_EQ(integer("i64"), -5);
    EXPECT_EQ(*file.Number("f32", 0, 1), 0.5);
    EXPECT_EQ(*file.Number("f64", 0, 1), 0.25);
    EXPECT_EQ(*file.Number("u8", 0, 1000), 200.0);
    EXPECT_EQ(*file.Bool("yes"), true);
    EXPECT_EQ(*file.String("name"), "a model");
    EXPECT_THAT(*file.Strings("words"), ElementsAre("one", "", "three"));
    EXPECT_THAT(*file.Integers("ints"), ElementsAre(1, -2, 3));
    EXPECT_THAT(*file.Floats("floats"), ElementsAre(1.5f, -2.5f));
    EXPECT_TRUE(file.Has("arrays"));
    EXPECT_FALSE(file.Has("nothing"));
  }
}

TEST(GgufFileTest, ReadsTensors) {
  const std::string content = Example();
  const auto parsed = GgufFile::Parse(Bytes(content), "f.gguf");
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  ASSERT_EQ((*parsed)->tensors().size(), 2u);
  const Tensor* w = (*parsed)->FindTensor("w");
  ASSERT_NE(w, nullptr);
  EXPECT_THAT(w->shape, ElementsAre(2, 3));
  EXPECT_EQ(w->type, kF32);
  EXPECT_EQ(Text(w->bytes), std::string(24, 'w'));
  const Tensor* q = (*parsed)->FindTensor("q");
  ASSERT_NE(q, nullptr);
  EXPECT_EQ(Text(q->bytes), std::string(136, 'q'));
  EXPECT_EQ((*parsed)->FindTensor("x"), nullptr);
}

TEST(GgufFileTest, OpensFiles) {
  engine::ModelDir dir;
  dir.Write("a.gguf", Example());
  dir.Write("b.gguf", "GGU");
  EXPECT_TRUE(IsGgufFile(dir.File("a.gguf")));
  EXPECT_FALSE(IsGgufFile(dir.File("b.gguf")));
  EXPECT_FALSE(IsGgufFile(dir.path()));
  EXPECT_FALSE(IsGgufFile(dir.File("c.gguf")));
  const auto file = GgufFile::Open(dir.File("a.gguf"));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ((*file)->path(), dir.File("a.gguf"));
  EXPECT_EQ(*(*file)->String("name"), "a model");
  EXPECT_EQ(GgufFile::Open(dir.File("c.gguf")).status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_THAT(GgufFile::Open(dir.File("b.gguf")).status().message(),
              HasSubstr(dir.File("b.gguf")));
}

TEST(GgufFileTest, WrongKindsNameFileAndKey) {
  const std::string content = Example();
  const auto file = *GgufFile::Parse(Bytes(content), "f.gguf");
  const std::vector<std::pair<std::string, absl::Status>> errors = {
      {"name", file->Integer("name", 0, 1).status()},
      {"f32", file->Integer("f32", 0, 1).status()},
      {"u64", file->Integer("u64", 0, 1).status()},
      {"u8", file->Integer("u8", 0, 199).status()},
      {"i8", file->Integer("i8", 0, 1).status()},
      {"yes", file->Number("yes", 0, 1).status()},
      {"f64", file->Number("f64", 0.5, 1).status()},
      {"u8", file->Bool("u8").status()},
      {"words", file->String("words").status()},
      {"ints", file->Strings("ints").status()},
      {"name", file->Strings("name").status()},
      {"floats", file->Integers("floats").status()},
      {"words", file->Integers("words").status()},
      {"arrays", file->Integers("arrays").status()},
      {"ints", file->Floats("ints").status()},
  };
  for (const auto& [key, error] : errors) {
    EXPECT_EQ(error.code(), absl::StatusCode::kInvalidArgument) << key;
    EXPECT_THAT(error.message(), AllOf(HasSubstr("f.gguf"), HasSubstr(key)));
  }
  const absl::Status missing = file->Integer("there.is.none", 0, 1).status();
  EXPECT_EQ(missing.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(missing.message(),
              AllOf(HasSubstr("f.gguf"), HasSubstr("there.is.none")));
}

TEST(GgufFileTest, NotANumberIsOutOfEveryRange) {
  GgufWriter writer;
  writer.AddFloat("nan", std::nanf(""));
  const std::string content = writer.Finish();
  const auto file = *GgufFile::Parse(Bytes(content), "f.gguf");
  EXPECT_EQ(file->Number("nan", -1e300, 1e300).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(GgufFileTest, EveryTruncationIsAnError) {
  const std::string content = Example();
  // The last tensor's padding belongs to no tensor.
  for (size_t size = 0; size < content.size() - 31; ++size) {
    EXPECT_FALSE(ParseError(content.substr(0, size)).ok()) << size;
  }
}

// The head of a file with this version, these counts and then these bytes.
std::string Raw(uint32_t version, uint64_t tensors, uint64_t values,
                const std::string& rest) {
  return "GGUF" + NumberBytes(version) + NumberBytes(tensors) +
         NumberBytes(values) + rest;
}

TEST(GgufFileTest, BrokenFilesNameWhatIsBroken) {
  const std::string key = StringBytes("the.key");
  const std::string name = StringBytes("the.tensor");
  const auto tensor = [&](std::vector<uint64_t> shape, uint32_t type,
                          uint64_t offset) {
    std::string bytes = name + NumberBytes<uint32_t>(shape.size());
    for (const uint64_t size : shape) bytes += NumberBytes(size);
    return bytes + NumberBytes(type) + NumberBytes(offset);
  };
  constexpr uint64_t kMax = ~uint64_t{0};
  const std::string array = key + NumberBytes<uint32_t>(9);
  const std::vector<std::pair<std::string, std::string>> broken = {
      {"", "magic"},
      {"GGML" + std::string(20, '\0'), "not a GGUF file"},
      {Raw(3, 0, kMax, ""), "metadata"},
      {Raw(3, kMax, 0, ""), "tensor"},
      {Raw(3, 0, 1, NumberBytes(kMax)), "metadata key"},
      {Raw(3, 0, 1, StringBytes(std::string(70000, 'k'))), "70000 bytes"},
      {Raw(3, 0, 1, key + NumberBytes<uint32_t>(13)), "the.key"},
      {Raw(3, 0, 1, key + NumberBytes<uint32_t>(8) + NumberBytes(kMax)),
       "the.key"},
      {Raw(3, 0, 1, array + NumberBytes<uint32_t>(10) + NumberBytes(kMax)),
       "the.key"},
      {Raw(3, 0, 1, array + NumberBytes<uint32_t>(8) + NumberBytes(kMax)),
       "the.key"},
      {Raw(3, 0, 1, array + NumberBytes<uint32_t>(9) + NumberBytes(kMax)),
       "the.key"},
      {Raw(3, 0, 2,
           key + NumberBytes<uint32_t>(0) + "1" + key +
               NumberBytes<uint32_t>(0) + "2"),
       "twice"},
      {Raw(3, 1, 0, name + NumberBytes<uint32_t>(5)), "5 dimensions"},
      {Raw(3, 1, 0, tensor({1u << 31, 1u << 31, 4}, kF32, 0)), "the.tensor"},
      {Raw(3, 1, 0, tensor({kMax}, kF32, 0)), "the.tensor"},
      {Raw(3, 1, 0, tensor({uint64_t{1} << 62}, kF32, 0)), "the.tensor"},
      {Raw(3, 1, 0, tensor({33}, kQ8_0, 0)), "rows of 33"},
      {Raw(3, 1, 0, tensor({4}, kF32, 0)), "the.tensor"},
      {Raw(3, 1, 0, tensor({1}, kF32, 4) + std::string(99, '\0')), "alignment"},
      {Raw(3, 1, 0, tensor({1}, kF32, kMax - 31) + std::string(99, '\0')),
       "the.tensor"},
      {Raw(3, 2, 0,
           tensor({1}, kF32, 0) + tensor({1}, kF32, 0) + std::string(99, '\0')),
       "twice"},
  };
  for (const auto& [content, part] : broken) {
    const absl::Status error = ParseError(content);
    EXPECT_EQ(error.code(), absl::StatusCode::kInvalidArgument) << part;
    EXPECT_THAT(error.message(), AllOf(HasSubstr("f.gguf"), HasSubstr(part)));
  }
  const std::vector<std::pair<std::string, std::string>> unknown = {
      {Raw(1, 0, 0, ""), "version 1"},
      {Raw(4, 0, 0, ""), "version 4"},
      {Raw(3u << 24, 0, 0, ""), "big-endian"},
      {Raw(3, 1, 0, tensor({256}, 137, 0)), "type 137"},
      {Raw(3, 0, 1,
           StringBytes("split.count") + NumberBytes<uint32_t>(2) +
               NumberBytes<uint16_t>(3)),
       "split.count"},
  };
  for (const auto& [content, part] : unknown) {
    const absl::Status error = ParseError(content);
    EXPECT_EQ(error.code(), absl::StatusCode::kUnimplemented) << part;
    EXPECT_THAT(error.message(), AllOf(HasSubstr("f.gguf"), HasSubstr(part)));
  }
}

// A file with holes says that it is as large as its counts ask for.
TEST(GgufFileTest, CountsBeyondAnyModelAreRefused) {
  for (const auto& [tensors, values] :
       {std::pair<uint64_t, uint64_t>{65537, 0}, {0, 4097}}) {
    // Tensors of zeros are valid: without a name, of one element in F32.
    const absl::Status error =
        ParseError(Raw(3, tensors, values, std::string(24 * 65537, 0)));
    EXPECT_EQ(error.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(error.message(),
                AllOf(HasSubstr("f.gguf"), HasSubstr("65536 and 4096")));
  }
  constexpr uint64_t kMaxElements = 1 << 24;
  const auto array = [](const char* key, uint64_t count) {
    return StringBytes(key) + NumberBytes<uint32_t>(9) +
           NumberBytes<uint32_t>(0) + NumberBytes(count) +
           std::string(count, 0);
  };
  EXPECT_TRUE(ParseError(Raw(3, 0, 1, array("one", kMaxElements))).ok());
  EXPECT_THAT(ParseError(Raw(3, 0, 2,
                             array("one", kMaxElements - 9) + array("two", 10)))
                  .message(),
              AllOf(HasSubstr("f.gguf"), HasSubstr("\"two\" has 10 elements")));
}

TEST(GgufFileTest, DeepArraysAreRefused) {
  std::string bytes;
  for (int i = 0; i < 100; ++i) {
    bytes += NumberBytes<uint32_t>(9) + NumberBytes<uint64_t>(1);
  }
  GgufWriter writer;
  writer.AddRaw("deep", 9, bytes);
  EXPECT_THAT(ParseError(writer.Finish()).message(), HasSubstr("deep"));
}

TEST(GgufFileTest, AlignmentIsTheFiles) {
  for (const uint32_t alignment : {1u, 8u, 64u, 4096u}) {
    GgufWriter writer(3, alignment);
    writer.AddUint32("general.alignment", alignment);
    writer.AddTensor("a", kF32, {3}, "aaaabbbbcccc");
    writer.AddTensor("b", kBf16, {1}, "xy");
    const std::string content = writer.Finish();
    const auto file = GgufFile::Parse(Bytes(content), "f.gguf");
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_EQ(Text((*file)->FindTensor("a")->bytes), "aaaabbbbcccc");
    EXPECT_EQ(Text((*file)->FindTensor("b")->bytes), "xy");
  }
  for (const uint32_t alignment : {0u, 3u, 1u << 30}) {
    GgufWriter writer;
    writer.AddUint32("general.alignment", alignment);
    EXPECT_THAT(ParseError(writer.Finish()).message(),
                HasSubstr("general.alignment"));
  }
}

TEST(GgufFileTest, AFileWithoutTensorsMayEndAfterItsMetadata) {
  const std::string content =
      Raw(3, 0, 1, StringBytes("key") + NumberBytes<uint32_t>(7) + "\1");
  const auto file = GgufFile::Parse(Bytes(content), "f.gguf");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_THAT((*file)->tensors(), IsEmpty());
  EXPECT_TRUE(*(*file)->Bool("key"));
}

TEST(GgufFileTest, SurvivesDamage) {
  const std::string content = Example();
  std::mt19937 random(1);
  int parsed = 0;
  for (int i = 0; i < 20000; ++i) {
    std::string damaged = engine::Mutate(content, random);
    // Numbers in the file are binary: damage some as such.
    if (i % 2 == 0 && damaged.size() > 8) {
      const uint64_t value = random() % 3 == 0 ? ~uint64_t{0} >> random() % 64
                                               : uint64_t{random()} % 300;
      damaged.replace(random() % (damaged.size() - 8), 8, NumberBytes(value));
    }
    const auto file = GgufFile::Parse(Bytes(damaged), "f.gguf");
    if (!file.ok()) {
      EXPECT_FALSE(file.status().message().empty());
      continue;
    }
    ++parsed;
    for (const Tensor& tensor : (*file)->tensors()) {
      // Touches every byte.
      EXPECT_EQ(Text(tensor.bytes).size(), tensor.bytes.size());
    }
    for (const char* key : {"ints", "floats", "words", "name", "f32"}) {
      if (const auto v = (*file)->Integers(key); v.ok()) {
        EXPECT_LE(v->size(), damaged.size());
      }
      if (const auto v = (*file)->Floats(key); v.ok()) {
        EXPECT_LE(v->size(), damaged.size());
      }
      if (const auto v = (*file)->Strings(key); v.ok()) {
        for (const absl::string_view word : *v) {
          EXPECT_EQ(std::string(word).size(), word.size());
        }
      }
      (void)(*file)->Number(key, 0, 1);
    }
  }
  EXPECT_GT(parsed, 0);
}

}  // namespace
}  // namespace baton::gguf
