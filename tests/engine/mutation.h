// Bounded mutation fuzzing: small random damage to a valid input, the same on
// every run.
#pragma once

#include <cstddef>
#include <random>
#include <string>

namespace baton::engine {

// Damages `text` in one to four places: a byte changed, a run removed, a run
// repeated, or a number or bracket put in.
inline std::string Mutate(std::string text, std::mt19937& random) {
  static constexpr const char* kPieces[] = {"0",
                                            "-1",
                                            "4294967296",
                                            "9223372036854775807",
                                            "18446744073709551615",
                                            "1e308",
                                            "0.5",
                                            "{",
                                            "}",
                                            "[",
                                            "]",
                                            "\"",
                                            ",",
                                            ":",
                                            "null",
                                            "true",
                                            "\\",
                                            "[[[[",
                                            "{\"a\":"};
  const int times = 1 + static_cast<int>(random() % 4);
  for (int i = 0; i < times && !text.empty(); ++i) {
    const size_t at = random() % text.size();
    const size_t run = 1 + random() % 8;
    switch (random() % 5) {
      case 0:
        text[at] = static_cast<char>(random());
        break;
      case 1:
        text.erase(at, run);
        break;
      case 2:
        text.insert(at, text.substr(at, run));
        break;
      case 3:
        text.insert(at, kPieces[random() % std::size(kPieces)]);
        break;
      case 4:
        text.replace(at, run, kPieces[random() % std::size(kPieces)]);
        break;
    }
  }
  return text;
}

}  // namespace baton::engine
