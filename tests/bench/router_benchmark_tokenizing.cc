#include "tests/bench/router_benchmark_tokenizing.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "common/log.h"
#include "router/text/tokenizer.h"
#include "tests/bench/router_benchmark_setup.h"

namespace baton::bench {
namespace {

constexpr size_t kTextBytes = 400'000;
constexpr int kRepeats = 5;

std::string ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(in), {}};
  CHECK(!text.empty()) << path;
  return text;
}

// As often as it takes.
std::string Fill(const std::string& text) {
  std::string all;
  while (all.size() < kTextBytes) all += text;
  return all;
}

std::string Docs() {
  std::vector<std::string> files;
  for (const auto& file :
       std::filesystem::directory_iterator(BATON_SOURCE_DIR "/docs")) {
    if (file.path().extension() == ".md") files.push_back(file.path());
  }
  std::sort(files.begin(), files.end());
  std::string all;
  for (const std::string& file : files) all += ReadFile(file);
  return all;
}

}  // namespace

nlohmann::ordered_json MeasureTokenizing() {
  const struct {
    const char* name;
    std::string text;
  } texts[] = {
      {"stories", Fill(ReadFile(BATON_SOURCE_DIR "/tests/data/stories.txt"))},
      {"docs (Markdown)", Fill(Docs())},
      {"one word", std::string(kTextBytes, 'a')}};
  nlohmann::ordered_json rows;
  for (const char* name :
       {"stories", "mistral", "llama-3.1", "qwen3", "kimi"}) {
    const auto tokenizer = router::Tokenizer::Load(
        std::string(BATON_BINARY_DIR "/tests/data/tokenizers/") + name);
    CHECK(tokenizer.ok()) << tokenizer.status();
    for (const auto& [text_name, text] : texts) {
      std::vector<double> seconds;
      size_t tokens = 0;
      for (int i = 0; i < kRepeats; ++i) {
        const int64_t begin = NowNs();
        const auto ids = (*tokenizer)->Encode(text);
        seconds.push_back(static_cast<double>(NowNs() - begin) * 1e-9);
        CHECK(ids.ok()) << ids.status();
        tokens = ids->size();
      }
      const double median = Median(seconds);
      rows.push_back(
          {{"tokenizer", name},
           {"vocabulary", (*tokenizer)->vocab_size()},
           {"text", text_name},
           {"bytes per token",
            static_cast<double>(text.size()) / static_cast<double>(tokens)},
           {"MB/s", static_cast<double>(text.size()) / median * 1e-6},
           {"million tokens/s", static_cast<double>(tokens) / median * 1e-6}});
    }
  }
  return rows;
}

}  // namespace baton::bench
