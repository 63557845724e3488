#include "kv_transfer/handoff_receiver.h"

#include <utility>

#include "common/log.h"
#include "common/status_macros.h"
#include "kv_transfer/receiver_core.h"

namespace baton::kv_transfer {

absl::StatusOr<std::unique_ptr<HandoffReceiver>> HandoffReceiver::Create(
    Transport* transport, HandoffOptions options) {
  CHECK_EQ(options.self.role(), v1::WORKER_ROLE_DECODE);
  // A device does not decode what senders encode.
  options.self.set_exact_kv(options.kv.hasher != nullptr);
  BATON_RETURN_IF_ERROR(CheckOptions(options));
  BATON_ASSIGN_OR_RETURN(
      const RegionId region,
      transport->RegisterRegion(options.kv.memory, options.kv.descriptor));
  auto core = std::make_unique<Core>(transport, std::move(options), region);
  BATON_RETURN_IF_ERROR(core->SetUpProbes());
  transport->Start(core.get());
  return std::unique_ptr<HandoffReceiver>(new HandoffReceiver(std::move(core)));
}

HandoffReceiver::HandoffReceiver(std::unique_ptr<Core> core)
    : core_(std::move(core)) {}

HandoffReceiver::~HandoffReceiver() = default;

absl::Status HandoffReceiver::Open(OpenTransfer transfer) {
  return core_->Open(std::move(transfer));
}

void HandoffReceiver::Abort(TransferId transfer, TransferOutcome reason) {
  core_->Abort(transfer, reason);
}

std::vector<HandoffReceiver::Event> HandoffReceiver::Poll() {
  return core_->Poll();
}

std::vector<TransferId> HandoffReceiver::NearEnd() const {
  return core_->NearEnd();
}

HandoffReceiver::Stats HandoffReceiver::stats() const { return core_->stats(); }

}  // namespace baton::kv_transfer
