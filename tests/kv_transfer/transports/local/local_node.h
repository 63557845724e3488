// A handler that writes down what happened, and memory to share, for the tests
// of the local transport.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/shared_memory.h"
#include "kv_transfer/transport.h"

namespace baton::kv_transfer {

class Journal final : public TransportHandler {
 public:
  void OnPeerUp(PeerId peer, const std::string&) override {
    {
      absl::MutexLock lock(&mu_);
      peers_.push_back(peer);
    }
    Add("up");
  }
  void OnPeerDown(PeerId, const absl::Status& why) override {
    {
      absl::MutexLock lock(&mu_);
      why_ = why;
    }
    Add("down");
  }
  void OnMessage(PeerId, ByteSpan header) override {
    Add("message " + Text(header));
  }
  std::optional<Landing> OnPayload(PeerId, ByteSpan header,
                                   uint64_t bytes) override {
    Add("payload " + Text(header));
    return on_payload ? on_payload(bytes) : std::nullopt;
  }
  void OnLanded(PeerId, uint64_t, const absl::Status& status) override {
    Add(status.ok() ? "landed" : "not landed");
  }
  void OnSent(PeerId, uint64_t cookie, const absl::Status& status) override {
    Add((status.ok() ? "sent " : "not sent ") + std::to_string(cookie));
  }
  void OnTick() override {
    if (on_tick) on_tick();
  }
  // Set before it is started.
  std::function<void()> on_tick;

  // Whether `line` comes `times` times.
  bool Await(const std::string& line, int times = 1) {
    absl::MutexLock lock(&mu_);
    const auto there = [&] { return CountLocked(line) >= times; };
    return mu_.AwaitWithTimeout(absl::Condition(&there), absl::Seconds(20));
  }
  bool AwaitEither(const std::string& line, const std::string& other) {
    absl::MutexLock lock(&mu_);
    const auto there = [&] {
      return CountLocked(line) + CountLocked(other) > 0;
    };
    return mu_.AwaitWithTimeout(absl::Condition(&there), absl::Seconds(20));
  }
  int Count(const std::string& line) {
    absl::MutexLock lock(&mu_);
    return CountLocked(line);
  }
  std::vector<std::string> lines() {
    absl::MutexLock lock(&mu_);
    return lines_;
  }
  absl::Status why() {
    absl::MutexLock lock(&mu_);
    return why_;
  }
  PeerId peer(size_t i = 0) {
    absl::MutexLock lock(&mu_);
    return peers_.at(i);
  }

  // Set before the transport starts.
  std::function<std::optional<Landing>(uint64_t bytes)> on_payload;

 private:
  static std::string Text(ByteSpan bytes) {
    return std::string(reinterpret_cast<const char*>(bytes.data()),
                       bytes.size());
  }
  void Add(std::string line) {
    absl::MutexLock lock(&mu_);
    lines_.push_back(std::move(line));
  }
  int CountLocked(const std::string& line) {
    int n = 0;
    for (const std::string& l : lines_) n += l == line;
    return n;
  }

  absl::Mutex mu_;
  std::vector<std::string> lines_;
  std::vector<PeerId> peers_;
  absl::Status why_;
};

}  // namespace baton::kv_transfer
