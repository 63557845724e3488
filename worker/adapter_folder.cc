#include "worker/adapter_folder.h"

#include <sys/stat.h>

#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/adapter_name.h"
#include "common/clock.h"
#include "common/log.h"
#include "worker/adapter_table.h"

namespace baton::worker {
namespace {

namespace fs = std::filesystem;

// Of a folder without such files, empty.
std::vector<int64_t> SignatureOf(const std::string& dir) {
  std::vector<int64_t> signature;
  for (const char* file :
       {"adapter_config.json", "adapter_model.safetensors"}) {
    struct stat status = {};
    if (stat(absl::StrCat(dir, "/", file).c_str(), &status) != 0) return {};
    for (const int64_t part :
         {static_cast<int64_t>(status.st_ino), int64_t{status.st_size},
          int64_t{status.st_mtim.tv_sec}, int64_t{status.st_mtim.tv_nsec}}) {
      signature.push_back(part);
    }
  }
  return signature;
}

}  // namespace

absl::StatusOr<std::unique_ptr<AdapterFolder>> AdapterFolder::Open(
    const Options& options, const engine::Engine* engine,
    metrics::Metrics* metrics) {
  std::unique_ptr<AdapterFolder> folder(
      new AdapterFolder(options, engine, metrics));
  if (absl::Status status = folder->Look(/*at_once=*/true); !status.ok()) {
    return status;
  }
  folder->thread_ = std::thread([raw = folder.get()] { raw->Run(); });
  return folder;
}

AdapterFolder::AdapterFolder(const Options& options,
                             const engine::Engine* engine,
                             metrics::Metrics* metrics)
    : options_(options), engine_(engine) {
  if (metrics != nullptr) failed_ = AdapterChanges(metrics, "failed");
  for (const engine::AdapterInfo& adapter : engine->adapters()) {
    taken_.insert(adapter.name);
  }
}

AdapterFolder::~AdapterFolder() {
  stop_.Notify();
  if (thread_.joinable()) thread_.join();
}

void AdapterFolder::SetWake(std::function<void()> wake) {
  absl::MutexLock lock(&mu_);
  wake_ = std::move(wake);
}

std::vector<AdapterFolder::Change> AdapterFolder::Take() {
  absl::MutexLock lock(&mu_);
  num_changes_ = 0;
  return std::exchange(changes_, {});
}

void AdapterFolder::Run() {
  while (!stop_.WaitForNotificationWithTimeout(options_.every)) {
    const absl::Status status = Look(/*at_once=*/false);
    // What is loaded stays: the folder may be back in a moment.
    LOG_IF(WARNING, !status.ok() && !unreadable_)
        << status.message() << "; its adapters stay as they are";
    unreadable_ = !status.ok();
  }
}

absl::Status AdapterFolder::Look(bool at_once) {
  std::map<std::string, Signature> found;
  std::error_code error;
  fs::directory_iterator entries(options_.dir, error);
  for (; !error && entries != fs::directory_iterator();
       entries.increment(error)) {
    const std::string name = entries->path().filename();
    Signature signature = SignatureOf(entries->path());
    if (!signature.empty()) found.emplace(name, std::move(signature));
  }
  if (error) {
    return absl::InvalidArgumentError(
        absl::StrCat("--adapter-dir ", options_.dir, ": ", error.message()));
  }
  for (auto at = known_.begin(); at != known_.end();) {
    if (found.contains(at->first)) {
      ++at;
      continue;
    }
    if (at->second.is_there) Tell({.name = at->first, .adapter = nullptr});
    at = known_.erase(at);
  }
  for (auto& [name, signature] : found) {
    if (stop_.HasBeenNotified()) break;
    const auto [place, is_new] = known_.try_emplace(name);
    Known& known = place->second;
    const bool settled = at_once || known.seen == signature;
    known.seen = std::move(signature);
    if (settled && known.tried != known.seen) Load(name, &known);
  }
  return absl::OkStatus();
}

void AdapterFolder::Load(const std::string& name, Known* known) {
  known->tried = known->seen;
  const absl::Time start = Clock::Monotonic()->Now();
  absl::StatusOr<std::unique_ptr<engine::PreparedAdapter>> adapter =
      absl::InvalidArgumentError(
          "its name is not one of 1 to 128 printable ASCII characters without "
          "spaces");
  if (taken_.contains(name)) {
    adapter = absl::AlreadyExistsError("--adapter has one of that name");
  } else if (IsAdapterName(name)) {
    adapter = engine_->PrepareAdapter(
        {.name = name, .dir = absl::StrCat(options_.dir, "/", name)});
  }
  if (!adapter.ok()) {
    LOG(WARNING) << "--adapter-dir: folder " << name
                 << " is not loaded: " << adapter.status().message();
    if (failed_ != nullptr) failed_->Increment();
    return;
  }
  LOG(INFO) << "adapter " << name << " of rank " << (*adapter)->info().rank
            << " read in " << Clock::Monotonic()->Now() - start;
  known->is_there = true;
  Tell({.name = name, .adapter = *std::move(adapter)});
}

void AdapterFolder::Tell(Change change) {
  absl::MutexLock lock(&mu_);
  changes_.push_back(std::move(change));
  num_changes_ = changes_.size();
  if (wake_) wake_();
}

}  // namespace baton::worker
