// `baton chat` against a router that the test plays, from a pipe and at a
// terminal.
#include "cli/chat.h"

#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <string>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/json.h"
#include "tests/cli/fake_router.h"

namespace baton::cli {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

void Finish(Writer* writer, v1::FinishReason reason) {
  v1::GenerateResponse last;
  last.set_finish_reason(reason);
  last.mutable_usage()->set_prompt_tokens(4);
  writer->Write(last);
}

// "one", "two", "three" to the first, second and third request.
class Counting final {
 public:
  grpc::Status operator()(grpc::ServerContext*, Writer* writer) {
    static constexpr const char* kWords[] = {"one", "two", "three"};
    WriteToken(writer, 7, kWords[(*count_)++ % 3]);
    Finish(writer, v1::FINISH_REASON_STOP);
    return grpc::Status::OK;
  }

 private:
  std::shared_ptr<int> count_ = std::make_shared<int>(0);
};

class ChatTest : public FakeRouterTest {
 protected:
  void SetUp() override {
    FakeRouterTest::SetUp();
    options_.router.address = address();
    options_.timeout_seconds = 30;
    router_.set_answer(Counting());
  }

  // With `input` in a pipe.
  int Run(const std::string& input) {
    int ends[2];
    EXPECT_EQ(pipe(ends), 0);
    // No more than a pipe holds.
    EXPECT_EQ(write(ends[1], input.data(), input.size()),
              static_cast<ssize_t>(input.size()));
    close(ends[1]);
    const int code = RunFrom(ends[0]);
    close(ends[0]);
    return code;
  }

  int RunFrom(int in) {
    std::FILE* out = std::tmpfile();
    std::FILE* err = std::tmpfile();
    const int code = RunChat(options_, in, out, err);
    out_ = ReadBack(out);
    err_ = ReadBack(err);
    std::fclose(out);
    std::fclose(err);
    return code;
  }

  // What was said, of the last request, as "role: text".
  std::vector<std::string> Said() {
    std::vector<std::string> said;
    for (const json& message :
         json::parse(router_.request().chat().messages())) {
      said.push_back(absl::StrCat(message.at("role").get<std::string>(), ": ",
                                  message.at("content").get<std::string>()));
    }
    return said;
  }

  ChatOptions options_;
  std::string out_;
  std::string err_;
};

TEST_F(ChatTest, EachLineIsAMessageOfOneConversation) {
  options_.system = "Count.";
  options_.model = "m";
  options_.max_tokens = 5;
  options_.sampling.greedy = true;
  EXPECT_EQ(Run("first\n\n  \n/second\nthird"), kExitOk);
  EXPECT_EQ(out_, "one\ntwo\nthree\n");
  EXPECT_EQ(err_, "");
  EXPECT_THAT(Said(), testing::ElementsAre("system: Count.", "user: first",
                                           "assistant: one", "user: /second",
                                           "assistant: two", "user: third"));
  EXPECT_EQ(router_.requests().size(), 3u);
  EXPECT_EQ(router_.request().model(), "m");
  EXPECT_EQ(router_.request().max_tokens(), 5u);
  EXPECT_EQ(router_.request().sampling().temperature(), 0.0f);
}

TEST_F(ChatTest, SaysWhereTheTimeWentWhenAsked) {
  options_.summary = true;
  EXPECT_EQ(Run("first\n"), kExitOk);
  EXPECT_THAT(err_, StartsWith("1 tokens after a prompt of 4"));
}

TEST_F(ChatTest, WhatIsNoUtf8IsReplaced) {
  EXPECT_EQ(Run("a\xff z\n"), kExitOk);
  EXPECT_THAT(Said(), testing::ElementsAre("user: a\xEF\xBF\xBD z"));
}

TEST_F(ChatTest, AnErrorEndsAPipeAndSaysWhy) {
  router_.set_answer([](grpc::ServerContext*, Writer*) {
    return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT,
                        "the model has no chat template");
  });
  EXPECT_EQ(Run("first\nsecond\n"), kExitFailed);
  EXPECT_EQ(out_, "");
  EXPECT_THAT(err_, HasSubstr("baton chat: INVALID_ARGUMENT: the model has no "
                              "chat template"));
  EXPECT_EQ(router_.requests().size(), 1u);
}

TEST_F(ChatTest, ALineThatIsTooLongIsAnError) {
  // More than a pipe holds.
  std::FILE* file = std::tmpfile();
  const std::string line((1 << 20) + 5000, 'x');
  std::fwrite(line.data(), 1, line.size(), file);
  std::fflush(file);
  lseek(fileno(file), 0, SEEK_SET);
  EXPECT_EQ(RunFrom(fileno(file)), kExitFailed);
  EXPECT_THAT(err_, HasSubstr("a line is too long"));
  std::fclose(file);
}

TEST_F(ChatTest, AnOutputThatNobodyReadsEndsIt) {
  std::FILE* const full = std::fopen("/dev/full", "w");
  std::FILE* const err = std::tmpfile();
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  ASSERT_EQ(write(ends[1], "a\nb\n", 4), 4);
  close(ends[1]);
  EXPECT_EQ(RunChat(options_, ends[0], full, err), kExitFailed);
  EXPECT_THAT(ReadBack(err), HasSubstr("cannot write the output"));
  EXPECT_EQ(router_.requests().size(), 1u);
  close(ends[0]);
  std::fclose(full);
  std::fclose(err);
}

TEST_F(ChatTest, WithoutARouterItSaysSo) {
  server_.server->Shutdown();
  server_.server->Wait();
  EXPECT_EQ(Run("first\n"), kExitFailed);
  EXPECT_THAT(err_, HasSubstr("baton chat: "));
}

// A terminal whose other end the test has.
class TerminalChatTest : public ChatTest {
 protected:
  void SetUp() override {
    ChatTest::SetUp();
    ASSERT_EQ(openpty(&person_, &terminal_, nullptr, nullptr, nullptr), 0);
  }

  void StartChat() {
    chat_ = std::thread([this] {
      std::FILE* out = fdopen(dup(terminal_), "w");
      code_ = RunChat(options_, terminal_, out, out);
      std::fclose(out);
      done_.Notify();
    });
  }
  void TearDown() override {
    if (chat_.joinable()) {
      Type("\x04");  // Ctrl-D
      EXPECT_TRUE(done_.WaitForNotificationWithTimeout(absl::Seconds(30)));
      chat_.join();
    }
    close(person_);
    close(terminal_);
  }

  void Type(const std::string& text) {
    EXPECT_EQ(write(person_, text.data(), text.size()),
              static_cast<ssize_t>(text.size()));
  }
  // Reads the screen until it has `text`, which the kernel's echo of what was
  // typed is a part of; what comes behind is for the next call.
  void AwaitOnScreen(const std::string& text) {
    while (!absl::StrContains(screen_, text)) {
      pollfd there = {person_, POLLIN, 0};
      ASSERT_EQ(poll(&there, 1, /*timeout=*/30'000), 1)
          << "no \"" << text << "\" in: " << screen_;
      char bytes[1024];
      const ssize_t n = read(person_, bytes, sizeof(bytes));
      ASSERT_GT(n, 0) << screen_;
      screen_.append(bytes, static_cast<size_t>(n));
    }
    screen_.erase(0, screen_.find(text) + text.size());
  }

  // Reads on until the chat is over.
  void AwaitDone() {
    const absl::Time deadline = absl::Now() + absl::Seconds(30);
    while (!done_.HasBeenNotified() && absl::Now() < deadline) {
      pollfd there = {person_, POLLIN, 0};
      char bytes[1024];
      if (poll(&there, 1, /*timeout=*/20) == 1) {
        ASSERT_GT(read(person_, bytes, sizeof(bytes)), 0);
      }
    }
    ASSERT_TRUE(done_.HasBeenNotified());
  }

  // When the chat is over.
  int ExitCode() {
    EXPECT_TRUE(done_.WaitForNotificationWithTimeout(absl::Seconds(30)));
    chat_.join();
    return code_;
  }

  int person_ = -1;
  int terminal_ = -1;
  std::thread chat_;
  absl::Notification done_;
  int code_ = -1;
  std::string screen_;
};

TEST_F(TerminalChatTest, AsksAndObeys) {
  StartChat();
  AwaitOnScreen("> ");
  Type("hello\n");
  AwaitOnScreen("one\r\n> ");
  Type("again, \\\nin two lines\n");
  AwaitOnScreen("two\r\n> ");
  EXPECT_THAT(Said(), testing::ElementsAre("user: hello", "assistant: one",
                                           "user: again, \nin two lines"));
  Type("/help\n");
  AwaitOnScreen("/reset");
  Type("/nothing\n");
  AwaitOnScreen("there is no /nothing");
  Type("/reset\n");
  Type("who am I?\n");
  AwaitOnScreen("three\r\n> ");
  EXPECT_THAT(Said(), testing::ElementsAre("user: who am I?"));
  Type("/exit\n");
  EXPECT_EQ(ExitCode(), kExitOk);
}

TEST_F(TerminalChatTest, WhatAModelSaysDoesNotSteerIt) {
  router_.set_answer([](grpc::ServerContext*, Writer* writer) {
    WriteToken(writer, 1, "\x1b[2Jgone");
    Finish(writer, v1::FINISH_REASON_LENGTH);
    return grpc::Status::OK;
  });
  StartChat();
  Type("hello\n");
  AwaitOnScreen("\xEF\xBF\xBD[2Jgone\r\n");
  AwaitOnScreen("no room for more");
}

TEST_F(TerminalChatTest, GoesOnAfterAnError) {
  router_.set_answer([](grpc::ServerContext*, Writer*) {
    return grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "full");
  });
  StartChat();
  Type("hello\n");
  AwaitOnScreen("RESOURCE_EXHAUSTED: full");
  AwaitOnScreen("> ");
  router_.set_answer(Counting());
  Type("hello?\n");
  AwaitOnScreen("one\r\n> ");
  EXPECT_THAT(Said(), testing::ElementsAre("user: hello?"));
  Type("/exit\n");
  EXPECT_EQ(ExitCode(), kExitFailed);
}

TEST_F(TerminalChatTest, CtrlCEndsTheAnswerAndThenTheChat) {
  router_.set_answer([](grpc::ServerContext* context, Writer* writer) {
    WriteToken(writer, 1, "well");
    while (!context->IsCancelled()) WriteToken(writer, 2, ",");
    return grpc::Status::CANCELLED;
  });
  StartChat();
  Type("hello\n");
  AwaitOnScreen("well,");
  // As the kernel does for a session's foreground, which this one is not.
  kill(getpid(), SIGINT);
  AwaitOnScreen("> ");
  router_.set_answer(Counting());
  Type("go on\n");
  AwaitOnScreen("one\r\n> ");
  ASSERT_THAT(Said(), testing::SizeIs(3));
  EXPECT_THAT(Said()[1], StartsWith("assistant: well,"));
  kill(getpid(), SIGINT);
  EXPECT_EQ(ExitCode(), kExitInterrupted);
}

TEST_F(TerminalChatTest, SigtermEndsTheChatInTheMiddleOfAnAnswer) {
  router_.set_answer([](grpc::ServerContext* context, Writer* writer) {
    while (!context->IsCancelled()) WriteToken(writer, 2, ",");
    return grpc::Status::CANCELLED;
  });
  StartChat();
  Type("hello\n");
  AwaitOnScreen(",,");
  kill(getpid(), SIGTERM);
  // So that it is not stopped by a screen that is full.
  AwaitDone();
  EXPECT_EQ(ExitCode(), kExitInterrupted);
}

}  // namespace
}  // namespace baton::cli
