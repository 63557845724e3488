#include "kv_transfer/transports/nccl/nccl_peer.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/log.h"

namespace baton::kv_transfer {

NcclPeer::NcclPeer(const Surroundings* surroundings, PeerId id,
                   std::string address, bool connected_by_us,
                   absl::Time deadline)
    : around_(surroundings),
      id_(id),
      address_(std::move(address)),
      connected_by_us_(connected_by_us),
      deadline_(deadline) {
  if (rank() == 0) CreateCommunicator("");
}

NcclPeer::~NcclPeer() { CHECK(finished()); }

void NcclPeer::CreateCommunicator(const std::string& unique_id) {
  communicator_ = around_->communicators->Create(
      rank(), unique_id, [around = around_, id = id_] { around->on_news(id); });
}

void NcclPeer::OnControlDown(const absl::Status& why) {
  control_down_ = true;
  // What is done is done.
  if (communicator_ != nullptr) TakeNews(communicator_->Poll());
  Fail(why);
}

void NcclPeer::OnControlStopped() {
  control_down_ = true;
  Fail(absl::CancelledError("the transport is stopping"));
  for (const auto& [ours, cookie] : std::exchange(control_sends_, {})) {
    if (cookie.has_value()) FinishSend(*cookie, failure_);
  }
}

void NcclPeer::Fail(absl::Status why) {
  CHECK(!why.ok());
  if (failure_.ok()) failure_ = std::move(why);
}

void NcclPeer::Serve(absl::Time now) {
  if (communicator_ != nullptr) TakeNews(communicator_->Poll());
  if (failure_.ok() && state_ == State::kConnecting && now >= deadline_) {
    Fail(absl::DeadlineExceededError(absl::StrCat(
        "no communicator in time: ",
        communicator_ == nullptr ? "the peer did not say which to join"
        : ready_here_            ? "the peer's is not ready"
                                 : "NCCL has not created it")));
  }
  if (failure_.ok()) FlushOutbox();
  if (!failure_.ok() && state_ != State::kDown) TakeDown();
}

bool NcclPeer::finished() const {
  return state_ == State::kDown && control_down_ && communicator_ == nullptr &&
         control_sends_.empty() && sends_.empty() && landings_.empty();
}

void NcclPeer::TakeNews(CommunicatorNews news) {
  for (uint64_t turn : news.done) Complete(turn, absl::OkStatus());
  if (!news.failure.ok()) {
    Fail(absl::Status(
        news.failure.code(),
        absl::StrCat("the communicator failed: ", news.failure.message())));
  }
  if (news.quiet) {
    CHECK(state_ == State::kDown);
    BecomeQuiet();
    return;
  }
  if (!failure_.ok() || state_ == State::kDown) return;
  if (!news.unique_id.empty()) Say(nccl_wire::EncodeJoin(news.unique_id));
  if (news.ready) {
    ready_here_ = true;
    Say(nccl_wire::EncodeReady());
    MarkUpWhenReady();
  }
}

void NcclPeer::MarkUpWhenReady() {
  if (state_ != State::kConnecting || !ready_here_ || !ready_there_) return;
  state_ = State::kUp;
  was_up_ = true;
  around_->set_up(id_);
  around_->handler->OnPeerUp(id_, address_);
}

void NcclPeer::TakeDown() {
  state_ = State::kDown;
  around_->set_down(id_);
  if (was_up_ || connected_by_us_) {
    around_->handler->OnPeerDown(id_, failure_);
  } else {
    LOG(WARNING) << "kv_transfer: " << address_
                 << " is not connected by nccl: " << failure_.message();
  }
  if (!control_down_) around_->control->ClosePeer(id_);
  DropUnposted();
  // What was posted may be read and written until it is quiet.
  if (communicator_ != nullptr) communicator_->Abort();
}

void NcclPeer::DropUnposted() {
  waiting_turns_.clear();
  for (const Outgoing& outgoing : std::exchange(outbox_, {})) {
    if (outgoing.cookie.has_value()) FinishSend(*outgoing.cookie, failure_);
  }
  for (auto it = sends_.begin(); it != sends_.end();) {
    if (it->second.posted) {
      ++it;
      continue;
    }
    FinishSend(it->second.cookie, failure_);
    it = sends_.erase(it);
  }
  for (const SendOp& op : std::exchange(queue_, {})) {
    FinishSend(op.cookie, failure_);
  }
  for (auto it = landings_.begin(); it != landings_.end();) {
    if (it->second.posted) {
      ++it;
      continue;
    }
    around_->handler->OnLanded(id_, it->second.cookie, failure_);
    it = landings_.erase(it);
  }
}

void NcclPeer::BecomeQuiet() {
  communicator_.reset();
  for (const auto& [turn, which] : std::map(posted_)) Complete(turn, failure_);
  CHECK(posted_.empty() && sends_.empty() && landings_.empty());
}

}  // namespace baton::kv_transfer
