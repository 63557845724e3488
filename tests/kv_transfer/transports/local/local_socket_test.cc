// Datagrams that are read many at a time.
#include "kv_transfer/transports/local/local_socket.h"

#include <sys/socket.h>

#include <array>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace baton::kv_transfer {
namespace {

class ReceiveDatagramsTest : public testing::Test {
 protected:
  static constexpr size_t kRoom = 100;
  static constexpr size_t kBatch = 4;

  ReceiveDatagramsTest() : buffer_(kBatch * kRoom) {
    int ends[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC,
                         0, ends),
              0);
    here_ = ScopedFd(ends[0]);
    there_ = ScopedFd(ends[1]);
  }

  void Say(const std::string& datagram) {
    ASSERT_EQ(send(there_.get(), datagram.data(), datagram.size(), 0),
              static_cast<ssize_t>(datagram.size()));
  }
  // What comes, or the code of the error.
  std::vector<std::string> Hear() {
    std::array<size_t, kBatch> sizes;
    const auto count = ReceiveDatagrams(here_.get(), absl::MakeSpan(buffer_),
                                        absl::MakeSpan(sizes));
    if (!count.ok()) return {absl::StatusCodeToString(count.status().code())};
    std::vector<std::string> heard;
    for (size_t i = 0; i < *count; ++i) {
      heard.emplace_back(reinterpret_cast<char*>(buffer_.data()) + i * kRoom,
                         sizes[i]);
    }
    return heard;
  }

  using Heard = std::vector<std::string>;
  std::vector<std::byte> buffer_;
  ScopedFd here_, there_;
};

TEST_F(ReceiveDatagramsTest, AsManyAsThereAreAndFit) {
  EXPECT_EQ(Hear(), Heard());
  for (const char* word : {"a", "bc", "def", "g", "hi"}) Say(word);
  EXPECT_EQ(Hear(), (Heard{"a", "bc", "def", "g"}));
  EXPECT_EQ(Hear(), (Heard{"hi"}));
  EXPECT_EQ(Hear(), Heard());
  Say(std::string(kRoom, 'x'));
  EXPECT_EQ(Hear(), (Heard{std::string(kRoom, 'x')}));
}

TEST_F(ReceiveDatagramsTest, TheEndComesAfterWhatWasSaid) {
  for (const char* word : {"a", "b"}) Say(word);
  there_ = ScopedFd();
  EXPECT_EQ(Hear(), (Heard{"a", "b"}));
  EXPECT_EQ(Hear(), Heard{"UNAVAILABLE"});
}

TEST_F(ReceiveDatagramsTest, TheEndComesAfterAFullBatch) {
  for (const char* word : {"a", "b", "c", "d"}) Say(word);
  there_ = ScopedFd();
  EXPECT_EQ(Hear(), (Heard{"a", "b", "c", "d"}));
  EXPECT_EQ(Hear(), Heard{"UNAVAILABLE"});
}

TEST_F(ReceiveDatagramsTest, WhatIsTooLongIsAnError) {
  Say("a");
  Say(std::string(kRoom + 1, 'x'));
  Say("b");
  EXPECT_EQ(Hear(), Heard{"INVALID_ARGUMENT"});
}

// Nothing that came with it may be lost without a word.
TEST_F(ReceiveDatagramsTest, AnEmptyOneAmongOthersIsAnError) {
  for (const char* word : {"a", "", "b"}) Say(word);
  EXPECT_EQ(Hear(), Heard{"INVALID_ARGUMENT"});
  for (const char* word : {"", "b"}) Say(word);
  EXPECT_EQ(Hear(), Heard{"INVALID_ARGUMENT"});
  Say("");
  EXPECT_EQ(Hear(), Heard{"UNAVAILABLE"});
}

}  // namespace
}  // namespace baton::kv_transfer
