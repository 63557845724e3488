#include "batch/result_file.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "common/json.h"
#include "common/output_file.h"
#include "tests/support/scratch_dir.h"

namespace baton::batch {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

BatchRequest Named(const std::string& id) {
  return {.line = 3, .custom_id = id};
}

BatchAnswer Body(int status, const std::string& body) {
  return {.status = status, .request_id = "r", .body = body};
}

std::string TextOf(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

class ResultFileTest : public testing::Test {
 protected:
  const test::ScratchDir scratch_;
  const std::string path_ = scratch_.path() + "/results.jsonl";
};

TEST(ResultLineTest, IsWhatTheBatchApiGives) {
  const std::string line =
      ResultLine(Named("a \"b\""), Body(200, "{\n \"x\": -0.4309361\n}\n"));
  EXPECT_EQ(line.find('\n'), line.size() - 1);
  EXPECT_EQ(json::parse(line),
            json::parse(R"({"id": "batch_req_3", "custom_id": "a \"b\"",
      "response": {"status_code": 200, "request_id": "r",
                   "body": {"x": -0.4309361}}, "error": null})"));
  // Numbers stay as the server wrote them.
  EXPECT_THAT(line, HasSubstr("-0.4309361"));
}

TEST(ResultLineTest, WithoutAnAnswerSaysWhy) {
  EXPECT_EQ(json::parse(ResultLine(Named("a"), {.error_code = "timeout",
                                                .error = "too \"late\""})),
            json::parse(R"({"id": "batch_req_3", "custom_id": "a",
      "response": null,
      "error": {"code": "timeout", "message": "too \"late\""}})"));
}

TEST(ResultLineTest, ABodyThatIsNoJsonIsAnError) {
  const BatchAnswer answer =
      CheckedAnswer(Body(502, "<html>bad gateway</html>"));
  EXPECT_EQ(answer.status, 0);
  EXPECT_EQ(answer.error_code, "invalid_answer");
  EXPECT_THAT(answer.error, HasSubstr("status 502"));
  EXPECT_THAT(answer.error, HasSubstr("<html>bad"));
  EXPECT_EQ(CheckedAnswer(Body(200, std::string(1 << 20, '['))).error_code,
            "invalid_answer");
  EXPECT_EQ(CheckedAnswer(Body(200, "{}")).status, 200);
}

TEST_F(ResultFileTest, ThereMustBeNone) {
  ASSERT_TRUE(WriteTextFile(path_, "").ok());
  EXPECT_TRUE(ResultFile::Create(path_).ok());
  ASSERT_TRUE(WriteTextFile(path_, "precious").ok());
  const auto file = ResultFile::Create(path_);
  EXPECT_EQ(file.status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(file.status().message()), HasSubstr(path_));
  EXPECT_EQ(TextOf(path_), "precious");
}

TEST_F(ResultFileTest, ResumesWithWhatWasAnswered) {
  const std::string good = ResultLine(Named("good"), Body(200, "{}"));
  const std::string more = ResultLine(Named("more"), Body(200, "{}"));
  const std::string cut = ResultLine(Named("cut"), Body(200, "{}"));
  ASSERT_TRUE(
      WriteTextFile(
          path_, absl::StrCat(good, ResultLine(Named("bad"), Body(400, "{}")),
                              ResultLine(Named("none"), {.error_code = "x"}),
                              more, good, cut.substr(0, cut.size() - 1)))
          .ok());
  auto file = ResultFile::Resume(path_);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_THAT(file->answered(), UnorderedElementsAre("good", "more"));
  EXPECT_EQ(TextOf(path_), good + more);
  EXPECT_TRUE(file->Write(cut).ok());
  EXPECT_TRUE(file->Finish().ok());
  EXPECT_EQ(TextOf(path_), good + more + cut);
}

TEST_F(ResultFileTest, ResumesNothingThatCannotBeRead) {
  std::filesystem::create_directory(path_);
  const absl::Status status = ResultFile::Resume(path_).status();
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("cannot read " + path_ + ": Is a directory"));
  // A file where a folder should be.
  std::ofstream(path_ + ".file").put('x');
  EXPECT_THAT(
      std::string(
          ResultFile::Resume(path_ + ".file/results").status().message()),
      HasSubstr("cannot read"));
}

TEST_F(ResultFileTest, ResumesWithNothing) {
  auto file = ResultFile::Resume(path_);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_TRUE(file->answered().empty());
  EXPECT_TRUE(file->Finish().ok());
  EXPECT_EQ(TextOf(path_), "");
}

TEST_F(ResultFileTest, AnotherFileIsNotTouched) {
  const std::string text = "{\"custom_id\": \"a\", \"body\": {}}\n";
  ASSERT_TRUE(WriteTextFile(path_, text).ok());
  const auto file = ResultFile::Resume(path_);
  EXPECT_EQ(file.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(std::string(file.status().message()),
            absl::StrCat(path_, ":1: no result of a batch"));
  EXPECT_FALSE(std::ifstream(path_ + ".resumed").is_open());
  EXPECT_EQ(TextOf(path_), text);
}

}  // namespace
}  // namespace baton::batch
