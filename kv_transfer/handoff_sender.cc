#include "kv_transfer/handoff_sender.h"

#include <utility>

#include "common/log.h"
#include "common/status_macros.h"
#include "kv_transfer/sender_core.h"

namespace baton::kv_transfer {

absl::StatusOr<std::unique_ptr<HandoffSender>> HandoffSender::Create(
    Transport* transport, HandoffOptions options) {
  CHECK_EQ(options.self.role(), v1::WORKER_ROLE_PREFILL);
  BATON_RETURN_IF_ERROR(CheckOptions(options));
  BATON_ASSIGN_OR_RETURN(
      const RegionId region,
      transport->RegisterRegion(options.kv.memory, options.kv.descriptor));
  auto core = std::make_unique<Core>(transport, std::move(options), region);
  BATON_RETURN_IF_ERROR(core->SetUpStaging());
  transport->Start(core.get());
  return std::unique_ptr<HandoffSender>(new HandoffSender(std::move(core)));
}

HandoffSender::HandoffSender(std::unique_ptr<Core> core)
    : core_(std::move(core)) {}

HandoffSender::~HandoffSender() = default;

absl::Status HandoffSender::Pair(const std::string& address) {
  return core_->Pair(address);
}

bool HandoffSender::IsReady(Incarnation receiver) const {
  return core_->IsReady(receiver);
}

absl::Status HandoffSender::Start(const Grant& grant,
                                  absl::Span<const BlockId> blocks,
                                  absl::Time deadline) {
  return core_->Start(grant, blocks, deadline);
}

void HandoffSender::SendLayer(TransferId transfer, int32_t layer,
                              int32_t blocks_ready) {
  core_->SendLayer(transfer, layer, blocks_ready);
}

void HandoffSender::Commit(TransferId transfer, const CommitRecord& record,
                           absl::Time computed_at) {
  core_->Commit(transfer, record, computed_at);
}

void HandoffSender::Abort(TransferId transfer, TransferOutcome reason) {
  core_->Abort(transfer, reason);
}

std::vector<HandoffSender::Event> HandoffSender::Poll() {
  return core_->Poll();
}

HandoffSender::Stats HandoffSender::stats() const { return core_->stats(); }

}  // namespace baton::kv_transfer
