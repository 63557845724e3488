// A DNS server with a table: real messages over UDP and TCP, for what asks real
// name servers.
//
// Any thread; the server has one of its own.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/scoped_fd.h"

namespace baton::test {

class DnsServer final {
 public:
  // How it answers.
  enum class Mode { kTable, kSilent, kServerFailure };

  // At a free port of 127.0.0.1.
  DnsServer();
  ~DnsServer();
  DnsServer(const DnsServer&) = delete;
  DnsServer& operator=(const DnsServer&) = delete;

  // "127.0.0.1:PORT".
  const std::string& address() const { return address_; }

  // A and AAAA records of the name, in lower case and without a last dot; none:
  // the name is there, and has no addresses.
  void Set(const std::string& name, const std::vector<std::string>& ips);
  // There is no such name.
  void Erase(const std::string& name);
  void SetMode(Mode mode);
  // Over UDP and TCP.
  int num_questions() const;
  int num_tcp_questions() const;

 private:
  void Run();
  void ServeUdp();
  // False: the connection is over.
  bool ServeTcp(int fd);
  // Empty: none.
  std::string AnswerTo(const std::string& question, bool tcp);

  ScopedFd udp_;
  ScopedFd tcp_;
  ScopedFd stop_;
  std::string address_;
  std::vector<ScopedFd> connections_;  // the thread's own

  mutable absl::Mutex mu_;
  std::map<std::string, std::vector<std::string>> table_ ABSL_GUARDED_BY(mu_);
  Mode mode_ ABSL_GUARDED_BY(mu_) = Mode::kTable;
  int questions_ ABSL_GUARDED_BY(mu_) = 0;
  int tcp_questions_ ABSL_GUARDED_BY(mu_) = 0;
  std::thread thread_;
};

}  // namespace baton::test
