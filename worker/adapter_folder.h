// A folder whose folders are LoRA adapters, each called as its folder is
// (--adapter-dir): those that come are made ready, those that go are told of.
//
// The folder is looked through every few seconds, by a thread of its own, which
// also reads adapters. One is read once its files stayed as they are from one
// look to the next; one that cannot be read is told of in the log, and tried
// again when its files change.
//
// Take and HasChanges from any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "common/metrics/metrics.h"
#include "engine/engine.h"

namespace baton::worker {

class AdapterFolder final {
 public:
  struct Options {
    std::string dir;
    absl::Duration every = absl::Seconds(2);
  };

  struct Change {
    std::string name;
    // Null: it is gone.
    std::unique_ptr<engine::PreparedAdapter> adapter;
  };

  // Looks through it once before it returns, and then again and again. Folders
  // that are called as adapters of the engine are ignored. InvalidArgument when
  // it is no folder that can be read. `engine` outlives it, and so does
  // `metrics`, if any.
  static absl::StatusOr<std::unique_ptr<AdapterFolder>> Open(
      const Options& options, const engine::Engine* engine,
      metrics::Metrics* metrics);
  ~AdapterFolder();

  // What is called when there are changes, by the folder's thread; null:
  // nothing.
  void SetWake(std::function<void()> wake);

  bool HasChanges() const { return num_changes_ > 0; }
  // In their order.
  std::vector<Change> Take();

 private:
  // Of the files of an adapter: another one when they change.
  using Signature = std::vector<int64_t>;

  struct Known {
    Signature seen;
    // What was read last, well or not.
    std::optional<Signature> tried;
    bool is_there = false;
  };

  AdapterFolder(const Options& options, const engine::Engine* engine,
                metrics::Metrics* metrics);

  void Run();
  // `at_once`: without a second look.
  absl::Status Look(bool at_once);
  void Load(const std::string& name, Known* known);
  void Tell(Change change);

  const Options options_;
  const engine::Engine* const engine_;
  prometheus::Counter* failed_ = nullptr;
  // Names that the engine has from the start.
  std::set<std::string> taken_;

  // The thread's own.
  std::map<std::string, Known> known_;
  bool unreadable_ = false;

  absl::Mutex mu_;
  std::vector<Change> changes_ ABSL_GUARDED_BY(mu_);
  std::function<void()> wake_ ABSL_GUARDED_BY(mu_);
  std::atomic<size_t> num_changes_ = 0;
  absl::Notification stop_;
  std::thread thread_;
};

}  // namespace baton::worker
