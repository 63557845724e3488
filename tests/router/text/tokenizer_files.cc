#include "tests/router/text/tokenizer_files.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>

#include "common/log.h"
#include "common/utf8.h"

namespace baton::router {

std::string TokenizerDir(const std::string& name) {
  return std::string(BATON_TOKENIZER_DIR) + "/" + name;
}

nlohmann::json TokenizerJson(const std::string& name, const std::string& file) {
  std::ifstream in(TokenizerDir(name) + "/" + file);
  CHECK(in.good()) << name << "/" << file;
  return nlohmann::json::parse(in);
}

const Tokenizer* LoadTokenizer(const std::string& name) {
  static auto* const loaded =
      new std::map<std::string, std::unique_ptr<Tokenizer>>;
  std::unique_ptr<Tokenizer>& kept = (*loaded)[name];
  if (kept == nullptr) {
    absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer =
        Tokenizer::Load(TokenizerDir(name));
    CHECK(tokenizer.ok()) << tokenizer.status();
    kept = *std::move(tokenizer);
  }
  return kept.get();
}

ModelDir::ModelDir() {
  std::string pattern =
      (std::filesystem::temp_directory_path() / "baton-tokenizer-XXXXXX")
          .string();
  CHECK(mkdtemp(pattern.data()) != nullptr);
  path_ = pattern;
}

ModelDir::~ModelDir() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

void ModelDir::Write(const std::string& file, const std::string& bytes) const {
  std::ofstream out(path_ + "/" + file, std::ios::binary);
  out << bytes;
  out.close();
  CHECK(out.good());
}

absl::StatusOr<std::unique_ptr<Tokenizer>> LoadTokenizerJson(
    const std::string& bytes) {
  const ModelDir dir;
  dir.Write("tokenizer.json", bytes);
  return Tokenizer::Load(dir.path());
}

std::string RandomBytes(std::mt19937* random, size_t size) {
  std::string bytes;
  for (size_t i = 0; i < size; ++i) {
    bytes.push_back(static_cast<char>((*random)() & 0xFF));
  }
  return bytes;
}

std::string RandomText(std::mt19937* random, size_t characters) {
  struct Range {
    char32_t first;
    char32_t last;
  };
  constexpr Range kRanges[] = {
      {' ', ' '},         {'a', 'z'},       {' ', '~'},        {'\t', '\r'},
      {'0', '9'},         {0xA0, 0x24F},    {0x300, 0x36F},    {0x400, 0x4FF},
      {0x600, 0x6FF},     {0x900, 0x97F},   {0x1100, 0x11FF},  {0x2000, 0x206F},
      {0x2581, 0x2581},   {0x3040, 0x30FF}, {0x4E00, 0x9FFF},  {0xAC00, 0xD7A3},
      {0x1F300, 0x1F6FF}, {0, 0xD7FF},      {0xE000, 0x10FFFF}};
  std::string text;
  for (size_t i = 0; i < characters; ++i) {
    const Range& range = kRanges[(*random)() % std::size(kRanges)];
    AppendUtf8(range.first + (*random)() % (range.last - range.first + 1),
               &text);
  }
  return text;
}

}  // namespace baton::router
