#include "cli/chat.h"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "cli/generate_summary.h"
#include "cli/stop_signals.h"
#include "cli/text_output.h"
#include "client/client.h"
#include "common/clock.h"
#include "common/json.h"

namespace baton::cli {
namespace {

// A longer line is nothing that a person says.
constexpr size_t kMaxLineBytes = 1 << 20;

constexpr char kHelp[] =
    "  /reset   forget what was said\n"
    "  /exit    end, as Ctrl-D does\n"
    "A line that ends with \\ goes on. Ctrl-C ends an answer.\n";

// Lines of a file descriptor, and the signals that come meanwhile.
class LineInput final {
 public:
  enum class Read { kLine, kEnd, kInterrupted, kFailed };

  explicit LineInput(int fd) : fd_(fd) {}

  // Waits for the next line, without its line feed. What is behind the last one
  // is one, too.
  Read Next(std::string* line) {
    for (;;) {
      const size_t end = buffer_.find('\n');
      if (end != std::string::npos) {
        *line = buffer_.substr(0, end);
        buffer_.erase(0, end + 1);
        return Read::kLine;
      }
      if (buffer_.size() > kMaxLineBytes) {
        why_ = "a line is too long";
        return Read::kFailed;
      }
      if (ended_ && buffer_.empty()) return Read::kEnd;
      if (ended_) {
        *line = std::exchange(buffer_, "");
        return Read::kLine;
      }
      if (const Read read = Fill(); read != Read::kLine) return read;
    }
  }

  // After kFailed.
  const std::string& why() const { return why_; }
  // One that has come and was not taken yet; 0: none.
  int TakeSignal() { return signals_.Take(); }

 private:
  // kLine: there may be more in the buffer.
  Read Fill() {
    pollfd fds[] = {{fd_, POLLIN, 0}, {signals_.get(), POLLIN, 0}};
    while (poll(fds, std::size(fds), -1) < 0) {
    }
    if (fds[1].revents != 0 && signals_.Take() != 0) return Read::kInterrupted;
    if (fds[0].revents == 0) return Read::kLine;
    char bytes[4096];
    const ssize_t n = read(fd_, bytes, sizeof(bytes));
    if (n < 0) {
      if (errno == EINTR || errno == EAGAIN) return Read::kLine;
      why_ = absl::StrCat("cannot read the input: ", std::strerror(errno));
      return Read::kFailed;
    }
    ended_ = n == 0;
    buffer_.append(bytes, static_cast<size_t>(n));
    return Read::kLine;
  }

  const int fd_;
  StopSignalFd signals_;
  std::string buffer_;
  bool ended_ = false;
  std::string why_;
};

// What was said, as the router wants it.
class Conversation final {
 public:
  explicit Conversation(const std::string& system) : system_(system) {
    Reset();
  }

  void Reset() {
    messages_ = nlohmann::json::array();
    if (!system_.empty()) Add("system", system_);
  }
  void Add(const char* role, const std::string& content) {
    messages_.push_back({{"role", role}, {"content", content}});
  }
  void DropLast() { messages_.erase(messages_.size() - 1); }

  // What is no UTF-8 is replaced.
  std::string ToJson() const {
    return messages_.dump(-1, ' ', false,
                          nlohmann::json::error_handler_t::replace);
  }

 private:
  const std::string system_;
  nlohmann::json messages_;
};

class Chat final {
 public:
  Chat(const ChatOptions& options, client::Client* router, int in,
       std::FILE* out, std::FILE* err)
      : options_(options),
        router_(router),
        is_person_(isatty(in) == 1),
        input_(in),
        output_(out),
        asks_(is_person_ && output_.is_terminal()),
        err_(err),
        conversation_(options.system) {}

  int Run() {
    for (;;) {
      std::string message;
      switch (ReadMessage(&message)) {
        case LineInput::Read::kEnd:
          if (asks_) output_.EndLine();
          return exit_code_;
        case LineInput::Read::kInterrupted:
          if (asks_) output_.EndLine();
          return kExitInterrupted;
        case LineInput::Read::kFailed:
          return Fail(input_.why());
        case LineInput::Read::kLine:
          break;
      }
      if (absl::StripAsciiWhitespace(message).empty()) continue;
      if (is_person_ && message[0] == '/') {
        if (message == "/exit") return exit_code_;
        Obey(message);
        continue;
      }
      if (Answer(message)) continue;
      if (interrupted_ == SIGTERM || (interrupted_ != 0 && !is_person_)) {
        return kExitInterrupted;
      }
      if (!is_person_ || output_.broken()) return kExitFailed;
    }
  }

 private:
  LineInput::Read ReadMessage(std::string* message) {
    message->clear();
    for (const char* prompt = "> ";; prompt = "  ") {
      if (asks_) output_.Write(prompt);
      std::string line;
      if (const auto read = input_.Next(&line);
          read != LineInput::Read::kLine) {
        return read;
      }
      const bool goes_on = is_person_ && absl::EndsWith(line, "\\");
      if (goes_on) line.back() = '\n';
      message->append(line);
      if (!goes_on) return LineInput::Read::kLine;
    }
  }

  void Obey(const std::string& command) {
    if (command == "/reset") {
      conversation_.Reset();
    } else if (command == "/help") {
      output_.Write(kHelp);
    } else {
      std::fprintf(err_,
                   "baton chat: there is no %s; /help lists what there "
                   "is\n",
                   SafeForTerminal(command).c_str());
    }
  }

  // False: there is none, or not all of it.
  bool Answer(const std::string& message) {
    conversation_.Add("user", message);
    v1::GenerateRequest request;
    request.set_model(options_.model);
    request.mutable_chat()->set_messages(conversation_.ToJson());
    SetSampling(options_.sampling, request.mutable_sampling());
    if (options_.max_tokens) request.set_max_tokens(*options_.max_tokens);

    client::GenerateOptions call;
    call.timeout = absl::Seconds(options_.timeout_seconds);
    std::atomic<int> interrupted = 0;  // by which signal
    std::string text;
    std::vector<absl::Time> token_times;
    int64_t tokens = 0;
    v1::GenerateResponse last;
    absl::Status status;
    {
      const StopSignalWatch watch([&](int signal) {
        interrupted = signal;
        call.cancel.Cancel();
      });
      status = router_->Generate(
          request, call, [&](const v1::GenerateResponse& response) {
            if (response.token_ids_size() > 0) {
              token_times.push_back(Clock::Monotonic()->Now());
              tokens += response.token_ids_size();
            }
            text += response.text();
            output_.Write(response.text());
            if (response.finish_reason() != v1::FINISH_REASON_UNSPECIFIED) {
              last = response;
            }
            return !output_.broken();
          });
    }
    if (!text.empty()) output_.EndLine();
    interrupted_ = interrupted;
    // Whoever pressed it twice meant this answer.
    while (interrupted != 0 && interrupted_ != SIGTERM) {
      const int more = input_.TakeSignal();
      if (more == 0) break;
      if (more == SIGTERM) interrupted_ = more;
    }
    if (output_.broken()) {
      Fail("cannot write the output");
      return false;
    }
    const bool failed = !status.ok() && interrupted_ == 0;
    // As if an answer that did not begin had not been asked for.
    if (text.empty() && (failed || interrupted_ != 0)) {
      conversation_.DropLast();
    } else {
      conversation_.Add("assistant", text);
    }
    if (failed) {
      Fail(DescribeError(status));
      return false;
    }
    if (interrupted_ != 0) return false;
    if (last.finish_reason() == v1::FINISH_REASON_ERROR) {
      Fail("the answer ended with an error");
      return false;
    }
    if (options_.summary) {
      std::fputs(SummarizeGenerate(last, token_times, tokens).c_str(), err_);
    } else if (is_person_ && last.finish_reason() == v1::FINISH_REASON_LENGTH) {
      std::fputs("(no room for more: --max-tokens, or the context)\n", err_);
    }
    return true;
  }

  int Fail(const std::string& why) {
    std::fprintf(err_, "baton chat: %s\n", why.c_str());
    exit_code_ = kExitFailed;
    return exit_code_;
  }

  const ChatOptions& options_;
  client::Client* const router_;
  // Not another program.
  const bool is_person_;
  LineInput input_;
  TextOutput output_;
  // Who sees a prompt.
  const bool asks_;
  std::FILE* const err_;
  Conversation conversation_;
  int interrupted_ = 0;  // the last answer, by which signal
  int exit_code_ = kExitOk;
};

}  // namespace

int RunChat(const ChatOptions& options, int in, std::FILE* out,
            std::FILE* err) {
  const absl::StatusOr<std::unique_ptr<client::Client>> router =
      ConnectToRouter(options.router, kConnectPatience);
  if (!router.ok()) {
    std::fprintf(err, "baton chat: %s\n",
                 std::string(router.status().message()).c_str());
    return kExitFailed;
  }
  return Chat(options, router->get(), in, out, err).Run();
}

}  // namespace baton::cli
