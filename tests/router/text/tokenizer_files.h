// Tokenizers for the tests of router/text: those of the repository, and
// changed ones in a directory of the test's own.
#pragma once

#include <memory>
#include <random>
#include <string>

#include "common/json.h"
#include "router/text/tokenizer.h"

namespace baton::router {

// The directory of a tokenizer of tests/data/tokenizers.
std::string TokenizerDir(const std::string& name);

// Its tokenizer.json, or another JSON file there.
nlohmann::json TokenizerJson(const std::string& name,
                             const std::string& file = "tokenizer.json");

// A tokenizer of the repository, loaded once and kept; the test ends if that
// fails.
const Tokenizer* LoadTokenizer(const std::string& name);

// A directory that is there as long as the object.
class ModelDir final {
 public:
  ModelDir();
  ~ModelDir();
  ModelDir(const ModelDir&) = delete;
  ModelDir& operator=(const ModelDir&) = delete;

  const std::string& path() const { return path_; }
  void Write(const std::string& file, const std::string& bytes) const;

 private:
  std::string path_;
};

// Loads a tokenizer from the bytes of a tokenizer.json.
absl::StatusOr<std::unique_ptr<Tokenizer>> LoadTokenizerJson(
    const std::string& bytes);

std::string RandomBytes(std::mt19937* random, size_t size);

// Random characters: letters, spaces and marks of several scripts, emoji, and
// any other.
std::string RandomText(std::mt19937* random, size_t characters);

}  // namespace baton::router
