// Two transports over fake communicators and a fake control transport, driven
// step by step, and a handler that writes everything down.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "kv_transfer/transport.h"
#include "kv_transfer/transports/nccl/nccl_transport.h"
#include "tests/support/fake_communicator.h"
#include "tests/support/fake_transport.h"

namespace baton::kv_transfer {

inline ByteSpan BytesOf(const std::string& s) {
  return ByteSpan(reinterpret_cast<const std::byte*>(s.data()), s.size());
}
inline std::string TextOf(ByteSpan bytes) {
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

class HandMovedClock final : public Clock {
 public:
  absl::Time Now() const override { return now; }
  absl::Time now = absl::UnixEpoch() + absl::Hours(1);
};

// One transport, its memory, and what its handler heard, as lines: "up",
// "down", "message m", "payload p", "landed 3", "sent 4"; what did not succeed
// has "not " before it.
class NcclEnd final : public TransportHandler {
 public:
  static constexpr size_t kRegionBytes = 64 << 10;

  NcclEnd(FakeNetwork& network, FakeFabric& fabric, bool listen,
          const NcclOptions& options)
      : memory(kRegionBytes) {
    std::unique_ptr<Transport> over = network.CreateTransport(listen);
    control = over.get();
    auto made =
        CreateNcclTransport(options, std::move(over), fabric.CreateEnd());
    EXPECT_TRUE(made.ok()) << made.status();
    transport = *std::move(made);
    region = *transport->RegisterRegion(absl::MakeSpan(memory), kNoDescriptor);
    transport->Start(this);
  }
  ~NcclEnd() override { transport->Stop(); }

  void Fill(uint8_t seed) {
    for (size_t i = 0; i < memory.size(); ++i) {
      memory[i] = static_cast<std::byte>(seed + i * 31 + i / 251);
    }
  }
  absl::Status Send(const std::string& header,
                    const std::vector<Extent>& payload, uint64_t cookie) {
    return transport->Send(peer, BytesOf(header), payload, cookie);
  }
  int Count(const std::string& line) const {
    return static_cast<int>(std::count(lines.begin(), lines.end(), line));
  }

  void OnPeerUp(PeerId id, const std::string&) override {
    peer = id;
    lines.push_back("up");
  }
  void OnPeerDown(PeerId, const absl::Status& status) override {
    why = status;
    lines.push_back("down");
  }
  void OnMessage(PeerId, ByteSpan header) override {
    EXPECT_EQ(Count("down"), 0);
    lines.push_back("message " + TextOf(header));
  }
  std::optional<Landing> OnPayload(PeerId, ByteSpan header,
                                   uint64_t bytes) override {
    EXPECT_EQ(Count("down"), 0);
    lines.push_back("payload " + TextOf(header));
    return on_payload ? on_payload(TextOf(header), bytes) : std::nullopt;
  }
  void CopyLanding(PeerId, uint64_t, ByteSpan, absl::Span<std::byte>,
                   Stores) override {
    ADD_FAILURE() << "the CPU does not see what lands";
  }
  void OnLanded(PeerId, uint64_t cookie, const absl::Status& status) override {
    lines.push_back(absl::StrCat(status.ok() ? "" : "not ", "landed ", cookie));
    if (on_landed) on_landed(cookie, status);
  }
  void OnSent(PeerId, uint64_t cookie, const absl::Status& status) override {
    lines.push_back(absl::StrCat(status.ok() ? "" : "not ", "sent ", cookie));
  }
  void OnTick() override { ++ticks; }

  std::vector<std::byte> memory;
  Transport* control = nullptr;  // of `transport`
  std::unique_ptr<Transport> transport;
  RegionId region{};
  PeerId peer{};  // set by OnPeerUp
  std::vector<std::string> lines;
  absl::Status why;
  int ticks = 0;
  std::function<std::optional<Landing>(std::string, uint64_t)> on_payload;
  std::function<void(uint64_t, const absl::Status&)> on_landed;
};

// `server` listens, and is rank 0.
class NcclPair {
 public:
  explicit NcclPair(NcclOptions options = {}, uint64_t seed = 1)
      : network(seed) {
    options.clock = &clock;
    server = std::make_unique<NcclEnd>(network, fabric, true, options);
    client = std::make_unique<NcclEnd>(network, fabric, false, options);
  }
  ~NcclPair() {
    client.reset();
    server.reset();
    EXPECT_THAT(fabric.complaints(), ::testing::IsEmpty());
    EXPECT_EQ(fabric.alive(), 0);
  }

  // Begins to connect, and does all that follows.
  void Connect() {
    auto id =
        client->transport->Connect(server->transport->properties().address);
    ASSERT_TRUE(id.ok()) << id.status();
    client->peer = *id;
    network.RunUntilIdle();
  }
  void ConnectAndExpectUp() {
    Connect();
    ASSERT_EQ(client->Count("up"), 1);
    ASSERT_EQ(server->Count("up"), 1);
  }
  // Every end is told the time.
  void Tick() {
    network.Tick();
    network.RunUntilIdle();
  }

  HandMovedClock clock;
  FakeNetwork network;
  FakeFabric fabric;
  std::unique_ptr<NcclEnd> server, client;
};

}  // namespace baton::kv_transfer
