// A network namespace with links to ours, for tests that cut or slow a network
// down. Ours is one that only this process is in, and those that it starts.
// Needs root and the `ip` command.
//
// For the test's main thread; the first one must come before other threads.
#pragma once

#include <string>

namespace baton::test {

// Runs a command and throws its output away; whether it succeeded.
bool Shell(const std::string& command);

// A namespace with two links (veth) to ours, gone with the object. What a test
// that was killed left behind is cleared away by the next one.
class NetworkNamespace final {
 public:
  enum Link { kControl = 0, kData = 1 };

  NetworkNamespace();
  ~NetworkNamespace();
  NetworkNamespace(const NetworkNamespace&) = delete;
  NetworkNamespace& operator=(const NetworkNamespace&) = delete;

  // Whether this machine allows it.
  bool made() const { return made_; }
  const std::string& name() const { return name_; }

  // Of the end inside, and of ours.
  std::string Address(Link link) const;
  std::string OurAddress(Link link) const;
  // Failed expectation when it cannot be set.
  void Set(Link link, bool up) const;

 private:
  std::string Net(Link link) const;
  std::string Device(Link link) const;
  bool AddLink(Link link) const;

  const std::string name_;
  bool made_ = false;
};

}  // namespace baton::test
