#include "tests/worker/in_process_worker.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "common/process/process.h"
#include "decode_worker/decode_loop.h"
#include "gtest/gtest.h"
#include "kv_transfer/transports/ucx/ucx_transport.h"
#include "prefill_worker/prefill_loop.h"
#include "proto/fingerprint.h"
#include "worker/worker_hello.h"

namespace baton::worker {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(60);
// More than any test takes.
constexpr absl::Duration kLease = absl::Minutes(10);
// Less than ctest gives a test.
constexpr absl::Duration kStreamPatience = absl::Minutes(4);

// Unlike a router's: a worker that a busy machine does not let answer pings for
// a second is not taken for lost.
std::shared_ptr<grpc::Channel> PatientChannel(const std::string& address) {
  grpc::ChannelArguments args;
  args.SetMaxReceiveMessageSize(rpc::kMaxMessageBytes);
  args.SetMaxSendMessageSize(rpc::kMaxMessageBytes);
  args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  args.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(),
                                   args);
}

}  // namespace

InProcessWorker::InProcessWorker(v1::WorkerRole role, WorkerOptions options,
                                 MakeEngine make_engine) {
  auto engine = make_engine(options.engine);
  CHECK(engine.ok()) << engine.status();
  engine_ = *std::move(engine);
  registry_ = std::make_unique<metrics::Metrics>(metrics::Labels());
  metrics_ = std::make_unique<WorkerMetrics>(registry_.get(), *engine_);
  kv_transfer::UcxOptions ucx;
  ucx.listen = role == v1::WORKER_ROLE_DECODE;
  auto transport = kv_transfer::CreateUcxTransport(ucx);
  CHECK(transport.ok()) << transport.status();
  transport_ = *std::move(transport);
  inbox_ = std::make_unique<Inbox>(64);

  const engine::KvLayout& layout = engine_->kv_layout();
  WorkerParts parts;
  parts.engine = engine_.get();
  parts.transport = transport_.get();
  parts.handoff.self = MakePeerHello(role, options.name, *engine_);
  parts.handoff.kv = Geometry(engine_.get());
  parts.handoff.report_layers = engine_->kv_stage() != nullptr;
  parts.handoff.probe_links = true;
  parts.handoff.wake = [inbox = inbox_.get()] { inbox->Wake(); };
  parts.inbox = inbox_.get();
  parts.metrics = metrics_.get();
  v1::WorkerHello hello = MakeWorkerHello(options, parts.handoff.self, *engine_,
                                          transport_->properties().address);
  CHECK_EQ(hello.total_blocks(), static_cast<uint32_t>(layout.num_blocks));
  service_ = std::make_unique<ControlService>(std::move(hello), inbox_.get(),
                                              &leases_);
  parts.outbox = service_.get();
  parts.leases = &leases_;
  parts.handoff.lease_until = [this](uint64_t session) {
    return leases_.Until(session);
  };
  absl::StatusOr<std::unique_ptr<WorkerLoop>> loop;
  if (role == v1::WORKER_ROLE_PREFILL) {
    loop = prefill_worker::MakePrefillLoop(options, parts);
  } else {
    loop = decode_worker::MakeDecodeLoop(options, parts);
  }
  CHECK(loop.ok()) << loop.status();
  loop_ = *std::move(loop);
  auto server = rpc::StartServer("127.0.0.1:0", {service_.get()});
  CHECK(server.ok()) << server.status();
  server_ = *std::move(server);
  address_ = absl::StrCat("127.0.0.1:", server_.port);
  thread_ = std::thread([this] {
    loop_->Run();
    ended_.Notify();
  });
}

InProcessWorker::~InProcessWorker() {
  loop_->RequestDrain();
  Join();
  service_->Shutdown();
  server_.server->Shutdown(
      absl::ToChronoTime(absl::Now() + absl::Milliseconds(500)));
  server_.server->Wait();
}

void InProcessWorker::Join() {
  if (!thread_.joinable()) return;
  CHECK(ended_.WaitForNotificationWithTimeout(2 * kPatience))
      << "the loop does not end";
  thread_.join();
}

RouterStream::RouterStream(const std::string& address)
    : stub_(v1::WorkerControl::NewStub(PatientChannel(address))) {
  context_.set_wait_for_ready(true);
  context_.set_deadline(absl::ToChronoTime(absl::Now() + kStreamPatience));
  stream_ = stub_->Connect(&context_);
  v1::RouterMessage hello;
  hello.mutable_hello()->set_router_name("test");
  hello.mutable_hello()->set_lease_ms(
      static_cast<uint32_t>(absl::ToInt64Milliseconds(kLease)));
  Send(hello);
  v1::WorkerMessage first;
  CHECK(stream_->Read(&first));
  CHECK(first.has_hello());
  hello_ = first.hello();
  reader_ = std::thread([this] {
    v1::WorkerMessage message;
    while (stream_->Read(&message)) {
      CHECK(received_.TryPush(std::move(message)));
      message.Clear();
    }
  });
}

RouterStream::~RouterStream() {
  context_.TryCancel();
  reader_.join();
}

void RouterStream::Send(const v1::RouterMessage& message) {
  ASSERT_TRUE(stream_->Write(message));
}

v1::WorkerMessage RouterStream::Await(
    const std::function<bool(const v1::WorkerMessage&)>& wanted) {
  const absl::Time until = absl::Now() + kPatience;
  while (true) {
    const auto it = std::find_if(kept_.begin(), kept_.end(), wanted);
    if (it != kept_.end()) {
      v1::WorkerMessage found = std::move(*it);
      kept_.erase(it);
      return found;
    }
    const absl::Duration left = until - absl::Now();
    if (left <= absl::ZeroDuration()) {
      ADD_FAILURE() << "no such message came";
      return v1::WorkerMessage();
    }
    for (v1::WorkerMessage& message : received_.DrainFor(left)) {
      kept_.push_back(std::move(message));
    }
  }
}

v1::Grant RouterStream::AwaitGrant(uint64_t attempt) {
  return Await([&](const v1::WorkerMessage& m) {
           return m.has_grant() && m.grant().attempt() == attempt;
         })
      .grant();
}

v1::Refusal RouterStream::AwaitRefusal(uint64_t attempt) {
  return Await([&](const v1::WorkerMessage& m) {
           return m.has_refusal() && m.refusal().attempt() == attempt;
         })
      .refusal();
}

v1::Outcome RouterStream::AwaitOutcome(uint64_t attempt) {
  return Await([&](const v1::WorkerMessage& m) {
           return m.has_outcome() && m.outcome().attempt() == attempt;
         })
      .outcome();
}

std::vector<v1::Token> RouterStream::AwaitTokens(uint64_t attempt,
                                                 size_t count) {
  std::vector<v1::Token> tokens;
  const auto of_attempt = [&](const v1::WorkerMessage& m) {
    return m.has_tokens() &&
           std::any_of(
               m.tokens().tokens().begin(), m.tokens().tokens().end(),
               [&](const v1::Token& t) { return t.attempt() == attempt; });
  };
  while (tokens.size() < count && !::testing::Test::HasFailure()) {
    v1::WorkerMessage message = Await(of_attempt);
    v1::WorkerMessage rest;
    for (const v1::Token& token : message.tokens().tokens()) {
      if (token.attempt() == attempt) {
        tokens.push_back(token);
      } else {
        *rest.mutable_tokens()->add_tokens() = token;
      }
    }
    if (rest.has_tokens()) kept_.insert(kept_.begin(), rest);
  }
  return tokens;
}

void RouterStream::AwaitFreeBlocks(uint32_t free_blocks) {
  // Reports that came earlier tell of earlier states; a new one comes at least
  // every second.
  for (v1::WorkerMessage& message : received_.DrainFor(absl::ZeroDuration())) {
    kept_.push_back(std::move(message));
  }
  kept_.erase(
      std::remove_if(kept_.begin(), kept_.end(),
                     [](const v1::WorkerMessage& m) { return m.has_load(); }),
      kept_.end());
  Await([&](const v1::WorkerMessage& m) {
    return m.has_load() && m.load().free_blocks() == free_blocks;
  });
}

}  // namespace baton::worker
