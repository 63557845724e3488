#include "router/discovery/dns_resolver.h"

#include <ares.h>
#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <map>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/log.h"
#include "common/scoped_fd.h"

namespace baton::router {
namespace {

using Answer = NameResolver::Answer;

// Of one question to one server, before the next server or another try.
constexpr int kTryMs = 1000;
constexpr int kTries = 2;

// One name, one family.
struct Question {
  bool done = false;
  int status = ARES_ECANCELLED;
  std::vector<std::string> addresses;

  bool none() const {
    return status == ARES_ENOTFOUND || status == ARES_ENODATA;
  }
};

void AddAddress(const sockaddr* address, std::vector<std::string>* out) {
  char text[INET6_ADDRSTRLEN] = {};
  const void* from = nullptr;
  if (address->sa_family == AF_INET) {
    from = &reinterpret_cast<const sockaddr_in*>(address)->sin_addr;
  } else if (address->sa_family == AF_INET6) {
    from = &reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr;
  } else {
    return;
  }
  if (inet_ntop(address->sa_family, from, text, sizeof(text)) != nullptr) {
    out->push_back(text);
  }
}

// c-ares calls it, also for what ares_cancel and ares_destroy end.
void OnAnswer(void* question, int status, int /*timeouts*/,
              ares_addrinfo* found) {
  auto* const q = static_cast<Question*>(question);
  q->done = true;
  q->status = status;
  if (found == nullptr) return;
  for (const ares_addrinfo_node* node = found->nodes; node != nullptr;
       node = node->ai_next) {
    AddAddress(node->ai_addr, &q->addresses);
  }
  ares_freeaddrinfo(found);
  if (status == ARES_SUCCESS && q->addresses.empty()) q->status = ARES_ENODATA;
}

// One round of questions: a channel of c-ares, which reads the machine's
// configuration, and the sockets that it waits for.
class Round final {
 public:
  Round() = default;
  ~Round() {
    if (channel_ != nullptr) ares_destroy(channel_);
  }
  Round(const Round&) = delete;
  Round& operator=(const Round&) = delete;

  absl::Status Open(const std::string& server) {
    ares_options options = {};
    options.timeout = kTryMs;
    options.tries = kTries;
    options.sock_state_cb = &Round::OnSocket;
    options.sock_state_cb_data = this;
    int status = ares_init_options(
        &channel_, &options,
        ARES_OPT_TIMEOUTMS | ARES_OPT_TRIES | ARES_OPT_SOCK_STATE_CB);
    if (status == ARES_SUCCESS && !server.empty()) {
      status = ares_set_servers_ports_csv(channel_, server.c_str());
    }
    if (status == ARES_SUCCESS) return absl::OkStatus();
    return absl::UnavailableError(ares_strerror(status));
  }

  void Ask(const std::string& name, int family, Question* question) {
    ares_addrinfo_hints hints = {};
    hints.ai_family = family;
    hints.ai_socktype = SOCK_STREAM;
    // In the order of the answer: nobody prefers one worker's address.
    hints.ai_flags = ARES_AI_NOSORT;
    ares_getaddrinfo(channel_, name.c_str(), nullptr, &hints, &OnAnswer,
                     question);
  }

  // Waits for the network once, at most until `deadline` or until `wake` can
  // be read, and lets c-ares work.
  void Work(int wake, absl::Time deadline) {
    std::vector<pollfd> fds = {{.fd = wake, .events = POLLIN}};
    for (const auto& [fd, events] : sockets_) {
      fds.push_back({.fd = fd, .events = events});
    }
    const absl::Duration left = deadline - absl::Now();
    timeval most = absl::ToTimeval(std::max(left, absl::ZeroDuration()));
    timeval own;
    const timeval* wait = ares_timeout(channel_, &most, &own);
    const int ms = static_cast<int>(
        absl::ToInt64Milliseconds(absl::DurationFromTimeval(*wait)) + 1);
    if (poll(fds.data(), fds.size(), ms) < 0 && errno != EINTR) {
      PLOG(ERROR) << "poll";
    }
    // Also without a socket: for what timed out.
    ares_process_fd(channel_, ARES_SOCKET_BAD, ARES_SOCKET_BAD);
    for (size_t i = 1; i < fds.size(); ++i) {
      const short ready = fds[i].revents;
      // What an earlier one closed is not ours any more.
      if (ready == 0 || !sockets_.contains(fds[i].fd)) continue;
      ares_process_fd(channel_,
                      (ready & ~POLLOUT) != 0 ? fds[i].fd : ARES_SOCKET_BAD,
                      (ready & POLLOUT) != 0 ? fds[i].fd : ARES_SOCKET_BAD);
    }
  }

  void Cancel() { ares_cancel(channel_); }

 private:
  static void OnSocket(void* round, ares_socket_t fd, int readable,
                       int writable) {
    auto& sockets = static_cast<Round*>(round)->sockets_;
    if (readable == 0 && writable == 0) {
      sockets.erase(fd);
      return;
    }
    sockets[fd] = static_cast<short>((readable != 0 ? POLLIN : 0) |
                                     (writable != 0 ? POLLOUT : 0));
  }

  ares_channel channel_ = nullptr;
  std::map<int, short> sockets_;
};

Answer AnswerOf(Question& v4, Question& v6, absl::Duration timeout) {
  // AAAA counts only when it is certain that there is no A.
  Question& q = v4.none() ? v6 : v4;
  if (q.status == ARES_SUCCESS) {
    std::sort(q.addresses.begin(), q.addresses.end());
    q.addresses.erase(std::unique(q.addresses.begin(), q.addresses.end()),
                      q.addresses.end());
    return std::move(q.addresses);
  }
  if (q.none()) return absl::NotFoundError("it has no addresses");
  if (q.status == ARES_ECANCELLED) {
    return absl::DeadlineExceededError(
        absl::StrCat("no answer within ", absl::FormatDuration(timeout)));
  }
  return absl::UnavailableError(ares_strerror(q.status));
}

class DnsResolver final : public NameResolver {
 public:
  explicit DnsResolver(std::string server)
      : server_(std::move(server)),
        wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    PCHECK(wake_.get() >= 0) << "eventfd";
  }

  std::vector<Answer> Resolve(const std::vector<std::string>& names,
                              absl::Duration timeout) override {
    const absl::Time deadline = absl::Now() + timeout;
    // Outlives the round, which answers all of them at its end.
    std::vector<Question> questions(2 * names.size());
    Round round;
    if (const absl::Status open = round.Open(server_); !open.ok()) {
      return std::vector<Answer>(names.size(), Answer(open));
    }
    for (size_t i = 0; i < names.size(); ++i) {
      round.Ask(names[i], AF_INET, &questions[2 * i]);
      round.Ask(names[i], AF_INET6, &questions[2 * i + 1]);
    }
    const auto done = [&] {
      return std::all_of(questions.begin(), questions.end(),
                         [](const Question& q) { return q.done; });
    };
    while (!done() && !stopped_ && absl::Now() < deadline) {
      round.Work(wake_.get(), deadline);
    }
    if (!done()) round.Cancel();
    std::vector<Answer> answers;
    for (size_t i = 0; i < names.size(); ++i) {
      answers.push_back(
          AnswerOf(questions[2 * i], questions[2 * i + 1], timeout));
    }
    return answers;
  }

  void Stop() override {
    stopped_ = true;
    const uint64_t one = 1;
    // It cannot be full, and stays readable.
    PCHECK(write(wake_.get(), &one, sizeof(one)) == sizeof(one)) << "eventfd";
  }

 private:
  const std::string server_;
  const ScopedFd wake_;
  std::atomic<bool> stopped_{false};
};

}  // namespace

bool IsDnsServer(absl::string_view server) {
  const size_t colon = server.rfind(':');
  if (colon == absl::string_view::npos) return false;
  const absl::string_view port = server.substr(colon + 1);
  int number = 0;
  if (port.find_first_not_of("0123456789") != absl::string_view::npos ||
      !absl::SimpleAtoi(port, &number) || number < 1 || number > 65535) {
    return false;
  }
  std::string host(server.substr(0, colon));
  in6_addr address;
  if (absl::StartsWith(host, "[") && absl::EndsWith(host, "]")) {
    host = host.substr(1, host.size() - 2);
    return inet_pton(AF_INET6, host.c_str(), &address) == 1;
  }
  return inet_pton(AF_INET, host.c_str(), &address) == 1;
}

absl::StatusOr<std::unique_ptr<NameResolver>> MakeDnsResolver(
    const std::string& server) {
  if (!server.empty() && !IsDnsServer(server)) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", server, "\" is not IP:PORT of a DNS server"));
  }
  // Once; there is nothing to be undone on Linux.
  static const int initialized = ares_library_init(ARES_LIB_INIT_ALL);
  CHECK_EQ(initialized, ARES_SUCCESS) << ares_strerror(initialized);
  return std::make_unique<DnsResolver>(server);
}

}  // namespace baton::router
