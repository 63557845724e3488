#include "router/grpc_worker_link.h"

#include <utility>

#include <grpcpp/grpcpp.h>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "baton/v1/worker.grpc.pb.h"
#include "common/log.h"
#include "common/rpc/grpc_credentials.h"
#include "common/rpc/grpc_setup.h"
#include "common/rpc/pending_writes.h"

namespace baton::router {
namespace {

// Messages to one worker that wait for the network.
constexpr size_t kMaxPendingWrites = 4096;
// Messages of one worker that wait for the loop.
constexpr int kMaxUnconsumed = 256;

using Writes = rpc::PendingWrites<v1::RouterMessage>;

class GrpcWorkerLink final : public WorkerLink {
 public:
  GrpcWorkerLink(int link, const std::string& address, v1::RouterMessage hello,
                 std::shared_ptr<tls::PemFiles> cluster_tls, Sink sink);
  ~GrpcWorkerLink() override;

  GrpcWorkerLink(const GrpcWorkerLink&) = delete;
  GrpcWorkerLink& operator=(const GrpcWorkerLink&) = delete;

  void Connect() override;
  bool connected() const override { return stream_ != nullptr; }
  bool Send(v1::RouterMessage message) override;
  void Consumed() override;
  void Ended() override;
  void Break() override;

 private:
  class Stream;

  // A channel with the certificate that is current, over a connection that is
  // not given up; REQUIRES: no stream.
  void UpdateChannel();

  const int link_;
  const std::string address_;
  const v1::RouterMessage hello_;
  const std::shared_ptr<tls::PemFiles> cluster_tls_;  // null: plain text
  const Sink sink_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::WorkerControl::Stub> stub_;
  uint64_t certificate_version_ = 0;  // of channel_
  // The worker did not answer: another one may have its address by now.
  bool connect_anew_ = false;
  // Whether the next stream waits for the worker to be there. One that does
  // not ends at once, with the reason that the other one never learns.
  bool wait_for_ready_ = false;
  std::unique_ptr<Stream> stream_;
};

// Owned by the link, which lets go of it only after OnDone, and never on one of
// gRPC's threads: the stream holds its channel, and the end of the last channel
// waits for those threads.
//
// A hold keeps OnDone away while writes may still be started from the loop; it
// is given back when the stream has been read to its end and no write is under
// way.
class GrpcWorkerLink::Stream final
    : public grpc::ClientBidiReactor<v1::RouterMessage, v1::WorkerMessage> {
 public:
  Stream(int link, bool with_tls, Sink sink)
      : link_(link),
        with_tls_(with_tls),
        sink_(std::move(sink)),
        writes_(kMaxPendingWrites) {}

  // `wait`: for the worker, without a time limit: the channel tries again and
  // again by itself. Otherwise a worker that is not there ends the stream.
  void Start(v1::WorkerControl::Stub* stub, const v1::RouterMessage& hello,
             bool wait) {
    context_.set_wait_for_ready(wait);
    stub->async()->Connect(&context_, this);
    AddHold();
    Send(hello);
    StartRead(&incoming_);
    StartCall();
  }

  bool Send(v1::RouterMessage message) {
    absl::MutexLock lock(&write_mu_);
    switch (writes_.Push(std::move(message))) {
      case Writes::PushResult::kStart:
        StartWrite(writes_.InFlight());
        return true;
      case Writes::PushResult::kQueued:
        return true;
      case Writes::PushResult::kFull:
      case Writes::PushResult::kClosed:
        return false;
    }
    LOG(FATAL) << "not a PushResult";
  }

  void Consumed() {
    {
      absl::MutexLock lock(&mu_);
      --unconsumed_;
      if (!paused_ || unconsumed_ >= kMaxUnconsumed / 2) return;
      paused_ = false;
    }
    StartRead(&incoming_);
  }

  void Break() {
    context_.TryCancel();
    {
      absl::MutexLock lock(&mu_);
      broken_ = true;
      if (!paused_) return;
      paused_ = false;
    }
    StartRead(&incoming_);  // finds the end
  }

  void WaitUntilDone() { done_.WaitForNotification(); }

  // Whether the worker said anything. After WaitUntilDone.
  bool spoke() const { return spoke_; }

 private:
  void OnReadDone(bool ok) override {
    if (!ok) {
      absl::MutexLock lock(&write_mu_);
      if (writes_.Close()) RemoveHold();
      return;
    }
    spoke_ = true;
    bool pause = false;
    {
      absl::MutexLock lock(&mu_);
      ++unconsumed_;
    }
    LinkEvent event;
    event.link = link_;
    event.message = std::move(incoming_);
    incoming_.Clear();
    sink_(std::move(event));
    {
      absl::MutexLock lock(&mu_);
      pause = unconsumed_ >= kMaxUnconsumed && !broken_;
      paused_ = pause;
    }
    if (!pause) StartRead(&incoming_);
  }

  void OnWriteDone(bool ok) override {
    absl::MutexLock lock(&write_mu_);
    const v1::RouterMessage* next = writes_.Done();
    // The stream is broken: what waits is lost, and the read side says so.
    while (!ok && next != nullptr) next = writes_.Done();
    if (next != nullptr) {
      StartWrite(next);
    } else if (writes_.closed()) {
      RemoveHold();
    }
  }

  void OnDone(const grpc::Status& status) override {
    LinkEvent event;
    event.link = link_;
    event.kind = LinkEvent::Kind::kEnded;
    event.reason =
        status.ok()
            ? "the worker ended the stream"
            : absl::StrCat(
                  rpc::ExplainConnectError(status.error_message(), with_tls_),
                  " (code ", static_cast<int>(status.error_code()), ")");
    sink_(std::move(event));
    done_.Notify();  // this may be gone from here on
  }

  const int link_;
  const bool with_tls_;
  const Sink sink_;
  grpc::ClientContext context_;
  v1::WorkerMessage incoming_;  // the read under way
  bool spoke_ = false;          // one read at a time, and OnDone after them
  absl::Notification done_;

  // Starting a write and giving the hold back exclude each other: a write must
  // not start on a call that is over.
  absl::Mutex write_mu_;
  Writes writes_ ABSL_GUARDED_BY(write_mu_);

  absl::Mutex mu_;
  bool broken_ ABSL_GUARDED_BY(mu_) = false;
  int unconsumed_ ABSL_GUARDED_BY(mu_) = 0;
  bool paused_ ABSL_GUARDED_BY(mu_) = false;
};

GrpcWorkerLink::GrpcWorkerLink(int link, const std::string& address,
                               v1::RouterMessage hello,
                               std::shared_ptr<tls::PemFiles> cluster_tls,
                               Sink sink)
    : link_(link),
      address_(address),
      hello_(std::move(hello)),
      cluster_tls_(std::move(cluster_tls)),
      sink_(std::move(sink)) {}

GrpcWorkerLink::~GrpcWorkerLink() {
  if (stream_ == nullptr) return;
  stream_->Break();
  stream_->WaitUntilDone();
}

void GrpcWorkerLink::UpdateChannel() {
  std::shared_ptr<const tls::PemContents> contents;
  if (cluster_tls_ != nullptr) contents = cluster_tls_->Get();
  const uint64_t version = contents == nullptr ? 0 : contents->version;
  if (channel_ != nullptr && !connect_anew_ &&
      version == certificate_version_) {
    return;
  }
  connect_anew_ = false;
  certificate_version_ = version;
  channel_ = rpc::MakeControlChannel(
      address_,
      contents == nullptr ? nullptr : rpc::MakeClusterCredentials(*contents));
  stub_ = v1::WorkerControl::NewStub(channel_);
}

void GrpcWorkerLink::Connect() {
  CHECK(stream_ == nullptr) << address_;
  UpdateChannel();
  stream_ = std::make_unique<Stream>(link_, cluster_tls_ != nullptr, sink_);
  stream_->Start(stub_.get(), hello_, wait_for_ready_);
}

bool GrpcWorkerLink::Send(v1::RouterMessage message) {
  return stream_ != nullptr && stream_->Send(std::move(message));
}

void GrpcWorkerLink::Consumed() {
  if (stream_ != nullptr) stream_->Consumed();
}

void GrpcWorkerLink::Ended() {
  CHECK(stream_ != nullptr) << address_;
  // kEnded is sent just before gRPC lets go.
  stream_->WaitUntilDone();
  // Waiting finds a worker that comes back soonest; but every other attempt
  // tells why it is not there.
  wait_for_ready_ = !stream_->spoke() && !wait_for_ready_;
  stream_.reset();
}

void GrpcWorkerLink::Break() {
  if (stream_ == nullptr) return;
  connect_anew_ = true;
  stream_->Break();
}

}  // namespace

MakeWorkerLink GrpcWorkerLinks(std::shared_ptr<tls::PemFiles> cluster_tls) {
  return [cluster_tls = std::move(cluster_tls)](
             int link, const std::string& address, v1::RouterMessage hello,
             WorkerLink::Sink sink) -> std::unique_ptr<WorkerLink> {
    return std::make_unique<GrpcWorkerLink>(link, address, std::move(hello),
                                            cluster_tls, std::move(sink));
  };
}

}  // namespace baton::router
