// What the contract suite of transports stands on: ways to make transports, a
// handler that writes everything down, and a fixture that connects two.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/shared_memory.h"
#include "kv_transfer/transport.h"
#include "kv_transfer/transports/host_aware/create_transport.h"
#include "kv_transfer/transports/nccl/nccl_transport.h"
#include "kv_transfer/transports/ucx/ucx_transport.h"
#include "tests/support/fake_communicator.h"
#include "tests/support/fake_transport.h"
#include "tests/support/test_certificates.h"

namespace baton::kv_transfer {

inline ByteSpan Bytes(const std::string& s) {
  return ByteSpan(reinterpret_cast<const std::byte*>(s.data()), s.size());
}
inline std::string Text(ByteSpan bytes) {
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

// One way to make transports, and to let them make progress.
class Network {
 public:
  virtual ~Network() = default;
  virtual std::unique_ptr<Transport> Create(bool listen) = 0;
  // One step, for transports that take none by themselves.
  virtual bool Step() = 0;
};

class FakeWorld final : public Network {
 public:
  std::unique_ptr<Transport> Create(bool listen) override {
    return network_.CreateTransport(listen);
  }
  bool Step() override {
    if (!network_.Step()) network_.Tick();
    return true;
  }

 private:
  FakeNetwork network_;
};

// Transports as workers have them: "ucx", "local", "tcp", "auto"; "fallback" is
// "auto" where the side that listens has UCX alone, and "door" UCX where that
// side has "auto". "tls" is "tcp" with TLS; with "tls_taken" the side that
// listens does not insist on it.
class RealWorld final : public Network {
 public:
  explicit RealWorld(std::string kind) : kind_(std::move(kind)) {}

  std::unique_ptr<Transport> Create(bool listen) override {
    UcxOptions options;
    options.listen = listen;
    options.max_sends_in_flight = FakeNetwork::kMaxSendsInFlight;
    options.max_sends_outstanding = FakeNetwork::kMaxSendsOutstanding;
    std::string kind = kind_;
    if (kind_ == "fallback") kind = listen ? "ucx" : "auto";
    if (kind_ == "door") kind = listen ? "auto" : "ucx";
    TcpTls tls;
    if (absl::StartsWith(kind_, "tls")) {
      kind = "tcp";
      tls.files = members_.Files();
      tls.required = !listen || kind_ == "tls";
    }
    auto transport = CreateTransport(kind, options, nullptr, tls);
    EXPECT_TRUE(transport.ok()) << transport.status();
    return transport.ok() ? *std::move(transport) : nullptr;
  }
  bool Step() override { return false; }

 private:
  const std::string kind_;
  test::ClusterMembers members_;
};

// The transport over communicators, which are fakes; messages go over
// `control`.
class NcclWorld final : public Network {
 public:
  explicit NcclWorld(std::unique_ptr<Network> control)
      : control_(std::move(control)) {}

  std::unique_ptr<Transport> Create(bool listen) override {
    NcclOptions options;
    options.max_sends_in_flight = FakeNetwork::kMaxSendsInFlight;
    options.max_sends_outstanding = FakeNetwork::kMaxSendsOutstanding;
    auto transport = CreateNcclTransport(options, control_->Create(listen),
                                         fabric_.CreateEnd());
    EXPECT_TRUE(transport.ok()) << transport.status();
    return transport.ok() ? *std::move(transport) : nullptr;
  }
  bool Step() override { return control_->Step(); }

 private:
  const std::unique_ptr<Network> control_;
  FakeFabric fabric_;
};

// Writes down what happened; answers payloads as the test says.
class Recorder final : public TransportHandler {
 public:
  struct Completion {
    PeerId peer{};
    uint64_t cookie = 0;
    absl::StatusCode code{};
    bool operator==(const Completion&) const = default;
  };

  void OnPeerUp(PeerId peer, const std::string& address) override {
    absl::MutexLock lock(&mu);
    ups.push_back(peer);
    addresses.push_back(address);
  }
  void OnPeerDown(PeerId peer, const absl::Status& why) override {
    absl::MutexLock lock(&mu);
    EXPECT_FALSE(why.ok());
    downs.push_back(peer);
  }
  void OnMessage(PeerId peer, ByteSpan header) override {
    std::function<void(PeerId, ByteSpan)> hook;
    {
      absl::MutexLock lock(&mu);
      EXPECT_THAT(downs, ::testing::Not(::testing::Contains(peer)));
      hook = on_message;
      if (!hook) messages.push_back(Text(header));
    }
    if (hook) hook(peer, header);
  }
  std::optional<Landing> OnPayload(PeerId peer, ByteSpan header,
                                   uint64_t bytes) override {
    absl::MutexLock lock(&mu);
    EXPECT_THAT(downs, ::testing::Not(::testing::Contains(peer)));
    payload_headers.push_back(Text(header));
    payload_bytes.push_back(bytes);
    std::optional<Landing> landing;
    if (on_payload) landing = on_payload(header, bytes);
    accepted += landing.has_value();
    return landing;
  }
  void CopyLanding(PeerId peer, uint64_t cookie, ByteSpan from,
                   absl::Span<std::byte> to, Stores stores) override {
    absl::MutexLock lock(&mu);
    EXPECT_FALSE(from.empty());
    EXPECT_EQ(from.size(), to.size());
    // None after its OnLanded.
    for (const Completion& l : landed) {
      EXPECT_FALSE(l.peer == peer && l.cookie == cookie) << cookie;
    }
    said[{peer, cookie}].append(Text(from));
    TransportHandler::CopyLanding(peer, cookie, from, to, stores);
  }
  void OnLanded(PeerId peer, uint64_t cookie,
                const absl::Status& status) override {
    absl::MutexLock lock(&mu);
    landed.push_back({peer, cookie, status.code()});
  }
  void OnSent(PeerId peer, uint64_t cookie,
              const absl::Status& status) override {
    absl::MutexLock lock(&mu);
    sent.push_back({peer, cookie, status.code()});
  }
  void OnTick() override {
    absl::MutexLock lock(&mu);
    ++ticks;
  }

  absl::Mutex mu;
  std::vector<PeerId> ups, downs;
  std::vector<std::string> addresses, messages, payload_headers;
  std::vector<uint64_t> payload_bytes;
  std::vector<Completion> landed, sent;
  int accepted = 0;
  int ticks = 0;
  std::function<std::optional<Landing>(ByteSpan, uint64_t)> on_payload;
  // What CopyLanding said of each landing, by peer and cookie.
  std::map<std::pair<PeerId, uint64_t>, std::string> said;
  std::function<void(PeerId, ByteSpan)> on_message;
};

// A transport with one region and a recorder.
struct Node {
  Node(Network& network, bool listen, size_t region_bytes = 64 << 10)
      : shared(*SharedMemory::Create(region_bytes, "a test")),
        memory(shared.memory()),
        transport(network.Create(listen)) {
    auto added = transport->RegisterRegion(memory, shared.descriptor());
    EXPECT_TRUE(added.ok());
    region = *added;
    transport->Start(&recorder);
  }
  ~Node() { transport->Stop(); }

  const std::string& address() { return transport->properties().address; }
  void Fill(uint8_t seed) {
    for (size_t i = 0; i < memory.size(); ++i) {
      memory[i] = static_cast<std::byte>(seed + i * 31 + i / 251);
    }
  }

  std::vector<std::byte> Copy() const { return {memory.begin(), memory.end()}; }

  SharedMemory shared;
  const absl::Span<std::byte> memory;
  Recorder recorder;
  RegionId region{};
  std::unique_ptr<Transport> transport;
};

class TransportContractTest : public ::testing::TestWithParam<std::string> {
 protected:
  TransportContractTest() {
    if (GetParam() == "fake") {
      network_ = std::make_unique<FakeWorld>();
    } else if (GetParam() == "nccl") {
      network_ =
          std::make_unique<NcclWorld>(std::make_unique<RealWorld>("ucx"));
    } else if (GetParam() == "nccl_over_fake") {
      network_ = std::make_unique<NcclWorld>(std::make_unique<FakeWorld>());
    } else {
      network_ = std::make_unique<RealWorld>(GetParam());
    }
  }

  // Whether `done`, which reads what `recorder` wrote, comes true in time.
  bool Await(Recorder& recorder, std::function<bool()> done) {
    for (int i = 0; i < 100000; ++i) {
      absl::MutexLock lock(&recorder.mu);
      if (done()) return true;
      recorder.mu.Unlock();
      const bool stepped = network_->Step();
      recorder.mu.Lock();
      if (!stepped) {
        return recorder.mu.AwaitWithTimeout(absl::Condition(&done),
                                            absl::Seconds(20));
      }
    }
    return false;
  }

  // `client` and `server` connected; client_peer_ and server_peer_ set.
  void Connect(Node& client, Node& server) {
    auto peer = client.transport->Connect(server.address());
    ASSERT_TRUE(peer.ok()) << peer.status();
    client_peer_ = *peer;
    ASSERT_TRUE(Await(client.recorder, [&] {
      return !client.recorder.ups.empty() &&
             client.recorder.ups.back() == client_peer_;
    }));
    ASSERT_TRUE(
        Await(server.recorder, [&] { return !server.recorder.ups.empty(); }));
    absl::MutexLock lock(&server.recorder.mu);
    server_peer_ = server.recorder.ups.back();
  }

  std::unique_ptr<Network> network_;
  PeerId client_peer_{}, server_peer_{};
};

}  // namespace baton::kv_transfer
