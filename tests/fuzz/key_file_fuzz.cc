// The file of API keys.
#include "common/log.h"
#include "router/access/key_file.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/fuzz/fuzz_target.h"

FUZZ_TARGET(key_file)(const uint8_t* data, size_t size) {
  baton::fuzz::FuzzInput input(data, size);
  const std::string text = baton::fuzz::Exactly(input.Rest());
  const auto keys = baton::router::ParseKeyFile(text, "keys");
  if (!keys.ok()) {
    CHECK(!keys.status().message().empty());
    return 0;
  }
  CHECK(!keys->empty() && keys->size() <= baton::router::kMaxKeys);
  // What was understood can be written, and is understood the same.
  std::string again;
  for (const auto& key : *keys) {
    again += baton::router::FormatKeyLine(key) + "\n";
  }
  const auto read = baton::router::ParseKeyFile(again, "keys");
  CHECK(read.ok()) << read.status();
  CHECK_EQ(read->size(), keys->size());
  for (size_t i = 0; i < keys->size(); ++i) {
    CHECK((*read)[i].name == (*keys)[i].name);
    CHECK((*read)[i].hash == (*keys)[i].hash);
    CHECK((*read)[i].limits == (*keys)[i].limits);
  }
  return 0;
}
