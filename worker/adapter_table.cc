#include "worker/adapter_table.h"

#include <algorithm>
#include <string>
#include <utility>

#include "common/log.h"

namespace baton::worker {

prometheus::Counter* AdapterChanges(metrics::Metrics* metrics,
                                    const char* change) {
  return metrics->Counter("baton_adapter_changes_total",
                          "LoRA adapters of --adapter-dir: that were added and "
                          "dropped, and those that could not be loaded.",
                          {{"change", change}});
}

AdapterTable::AdapterTable(engine::Engine* engine,
                           std::unique_ptr<AdapterFolder> folder,
                           metrics::Metrics* metrics)
    : engine_(engine),
      folder_(std::move(folder)),
      infos_(engine->adapters().begin(), engine->adapters().end()) {
  if (metrics == nullptr) return;
  added_ = AdapterChanges(metrics, "added");
  dropped_ = AdapterChanges(metrics, "dropped");
  failed_ = AdapterChanges(metrics, "failed");
  adapters_ = metrics->Gauge("baton_adapters",
                             "LoRA adapters that requests may ask for.");
  adapters_->Set(static_cast<double>(infos_.size()));
}

void AdapterTable::SetWake(std::function<void()> wake) {
  if (folder_ != nullptr) folder_->SetWake(std::move(wake));
}

int32_t AdapterTable::PlaceOf(const std::string& name) const {
  const auto place =
      std::find_if(infos_.begin(), infos_.end(),
                   [&](const auto& info) { return info.name == name; });
  return place == infos_.end() ? -1
                               : static_cast<int32_t>(place - infos_.begin());
}

void AdapterTable::Update() {
  if (folder_ == nullptr) return;
  if (!retired_.empty()) RemoveUnused();
  if (folder_->HasChanges()) {
    for (AdapterFolder::Change& change : folder_->Take()) {
      Take(std::move(change));
    }
    RemoveUnused();
  }
  AddWaiting();
}

void AdapterTable::Take(AdapterFolder::Change change) {
  const int32_t place = PlaceOf(change.name);
  // What waits under that name is old.
  std::erase_if(waiting_, [&](const auto& adapter) {
    return adapter->info().name == change.name;
  });
  if (change.adapter == nullptr) {
    if (place >= 0) Retire(place);
    return;
  }
  if (place >= 0 && infos_[place].identity == change.adapter->info().identity) {
    return;
  }
  waiting_.push_back(std::move(change.adapter));
}

void AdapterTable::Retire(int32_t place) {
  LOG(INFO) << "adapter " << infos_[place].name << " is asked for no more";
  infos_[place] = {};
  retired_.push_back(place);
  ++version_;
  if (dropped_ != nullptr) dropped_->Increment();
  if (adapters_ != nullptr) adapters_->Decrement();
}

bool AdapterTable::InUse(int32_t place) const {
  return std::any_of(users_.begin(), users_.end(),
                     [place](const auto& uses) { return uses(place); });
}

bool AdapterTable::WantsTurn() const {
  if (folder_ == nullptr) return false;
  return folder_->HasChanges() ||
         std::any_of(retired_.begin(), retired_.end(),
                     [this](int32_t place) { return !InUse(place); });
}

void AdapterTable::RemoveUnused() {
  std::erase_if(retired_, [this](int32_t place) {
    if (InUse(place)) return false;
    engine_->RemoveAdapter(place);
    return true;
  });
}

void AdapterTable::AddWaiting() {
  while (!waiting_.empty()) {
    const auto used =
        static_cast<size_t>(std::count_if(
            infos_.begin(), infos_.end(),
            [](const auto& info) { return !info.name.empty(); })) +
        retired_.size();
    if (used >= engine::kMaxAdapters) return;
    std::unique_ptr<engine::PreparedAdapter> adapter =
        std::move(waiting_.front());
    waiting_.erase(waiting_.begin());
    const engine::AdapterInfo info = adapter->info();
    const int32_t before = PlaceOf(info.name);
    const absl::StatusOr<int32_t> added =
        engine_->AddAdapter(std::move(adapter));
    if (!added.ok()) {
      LOG(WARNING) << "adapter " << info.name
                   << " is not added: " << added.status().message();
      if (failed_ != nullptr) failed_->Increment();
      continue;
    }
    const int32_t place = *added;
    infos_.resize(std::max(infos_.size(), static_cast<size_t>(place) + 1));
    if (before >= 0) Retire(before);
    infos_[place] = info;
    ++version_;
    if (added_ != nullptr) added_->Increment();
    if (adapters_ != nullptr) adapters_->Increment();
  }
}

v1::WorkerMessage AdapterFeed::News() const {
  v1::WorkerMessage message;
  v1::AdapterNews* const news = message.mutable_adapters();
  for (const engine::AdapterInfo& info : table_->infos()) {
    if (info.name.empty()) continue;
    v1::Adapter* const wire = news->add_adapters();
    wire->set_name(info.name);
    wire->set_identity(info.identity);
  }
  return message;
}

void AdapterFeed::AddRouter(SessionId session) {
  if (table_->version() > 0) outbox_->Send(session, News());
}

void AdapterFeed::Flush() {
  if (told_ == table_->version()) return;
  told_ = table_->version();
  outbox_->SendToAll(News());
}

}  // namespace baton::worker
