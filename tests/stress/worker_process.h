// One worker of a stress run as its driver sees it: a process that is started,
// told things, stopped, killed and reaped. It never outlives the driver.
//
// One thread, which must live as long.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <set>
#include <string>

#include "absl/time/time.h"
#include "common/scoped_fd.h"
#include "tests/stress/notes.h"
#include "tests/stress/stress_worker.h"

namespace baton::stress {

enum class Role { kSender, kReceiver };

class WorkerProcess final {
 public:
  // Starts this very program again, as a worker.
  WorkerProcess(Role role, const WorkerOptions& options, bool log);
  ~WorkerProcess();
  WorkerProcess(const WorkerProcess&) = delete;
  WorkerProcess& operator=(const WorkerProcess&) = delete;

  Role role() const { return role_; }
  uint64_t incarnation() const { return incarnation_; }
  NoteSocket& socket() { return socket_; }

  void Kill();
  // Stands still until Continue().
  void StandStill(absl::Time until);
  void Continue(absl::Time now);
  // Tells it to end.
  void Quit(absl::Time now);

  // Its port, once it said that it is up; 0 for a sender.
  std::optional<uint16_t> port;
  // Receivers that a sender is paired with.
  std::set<uint64_t> ready;

  bool is_up() const { return port.has_value() && !killed_ && !leaving_; }
  // InfinitePast: it runs.
  absl::Time still_until() const { return still_until_; }
  bool stands_still() const { return still_until_ > absl::InfinitePast(); }
  // Since when it has had the time to do what it should.
  absl::Time undisturbed_since() const { return undisturbed_since_; }

  // Once its socket is closed: how it ended, when not as it was told to.
  std::optional<std::string> Reap();
  bool reaped() const { return pid_ <= 0; }

 private:
  void Signal(int number);

  const Role role_;
  const uint64_t incarnation_;
  NoteSocket socket_;
  pid_t pid_ = -1;
  bool killed_ = false;
  bool leaving_ = false;
  absl::Time still_until_ = absl::InfinitePast();
  absl::Time undisturbed_since_;
};

}  // namespace baton::stress
