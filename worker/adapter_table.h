// The adapters that a worker's new sequences may ask for, as they come and go
// in a folder. One that goes, or gives way to another of its name, is asked for
// no more at once, and leaves the engine when its last sequence is over.
//
// Used by the thread that runs the loop, between steps; a dual worker's two
// loops share it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "baton/v1/worker.pb.h"
#include "common/metrics/metrics.h"
#include "engine/engine.h"
#include "worker/adapter_folder.h"
#include "worker/control_outbox.h"

namespace baton::worker {

class AdapterTable final {
 public:
  // `engine` outlives it, and so does `metrics`, if any. Without a folder
  // adapters stay as they are.
  explicit AdapterTable(engine::Engine* engine,
                        std::unique_ptr<AdapterFolder> folder = nullptr,
                        metrics::Metrics* metrics = nullptr);

  // `uses` says whether there are sequences with that one (PlannedSequence::
  // adapter). For as long as the table lives.
  void AddUser(std::function<bool(int32_t adapter)> uses) {
    users_.push_back(std::move(uses));
  }

  // By their place in the engine; those without a name are none.
  absl::Span<const engine::AdapterInfo> infos() const { return infos_; }
  // Grows when they change; 0 at first.
  uint64_t version() const { return version_; }

  // Takes what has changed in the folder. Cheap when that is nothing. REQUIRES:
  // the engine has no step, also none ahead.
  void Update();
  // Whether there is anything for that: no step should be ahead then.
  bool WantsTurn() const;

  // Called by another thread when something has changed in the folder; null:
  // nothing is.
  void SetWake(std::function<void()> wake);

 private:
  // Its place; -1: there is none of that name.
  int32_t PlaceOf(const std::string& name) const;
  void Take(AdapterFolder::Change change);
  // The adapter is no longer asked for.
  void Retire(int32_t place);
  bool InUse(int32_t place) const;
  void RemoveUnused();
  void AddWaiting();

  engine::Engine* const engine_;
  const std::unique_ptr<AdapterFolder> folder_;
  prometheus::Counter* added_ = nullptr;
  prometheus::Counter* dropped_ = nullptr;
  prometheus::Counter* failed_ = nullptr;
  prometheus::Gauge* adapters_ = nullptr;
  std::vector<std::function<bool(int32_t)>> users_;
  std::vector<engine::AdapterInfo> infos_;
  std::vector<int32_t> retired_;
  // For want of a place, oldest first.
  std::vector<std::unique_ptr<engine::PreparedAdapter>> waiting_;
  uint64_t version_ = 0;
};

// Tells the routers of one side which they are.
class AdapterFeed final {
 public:
  // Both outlive the feed.
  AdapterFeed(const AdapterTable* table, ControlOutbox* outbox)
      : table_(table), outbox_(outbox), told_(table->version()) {}

  // A router said hello: what its own hello said may be old.
  void AddRouter(SessionId session);
  // Tells of changes. Call it once in each turn.
  void Flush();

 private:
  v1::WorkerMessage News() const;

  const AdapterTable* const table_;
  ControlOutbox* const outbox_;
  uint64_t told_;
};

// The metric of adapters that came and went: "added", "dropped" or "failed".
prometheus::Counter* AdapterChanges(metrics::Metrics* metrics,
                                    const char* change);

}  // namespace baton::worker
