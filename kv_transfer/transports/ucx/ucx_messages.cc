#include <cstring>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "kv_transfer/transports/ucx/ucx_loop.h"

namespace baton::kv_transfer {
namespace {

// Active message ids, and the header of a preamble: what connects to us and
// does not send exactly these bytes is no transport of Baton, or another
// version of it.
constexpr unsigned kPreambleId = 1;
constexpr unsigned kMessageId = 2;
constexpr unsigned kPayloadId = 3;
constexpr char kPreamble[] = "baton kv/1";

}  // namespace

absl::Status UcxLoop::SetReceivers() {
  const struct {
    unsigned id;
    ucp_am_recv_callback_t callback;
  } kReceivers[] = {{kPreambleId, &UcxLoop::OnPreamble},
                    {kMessageId, &UcxLoop::OnMessage},
                    {kPayloadId, &UcxLoop::OnPayload}};
  for (const auto& receiver : kReceivers) {
    ucp_am_handler_param_t param{};
    param.field_mask =
        UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
        UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
    param.id = receiver.id;
    param.flags = UCP_AM_FLAG_WHOLE_MSG;
    param.cb = receiver.callback;
    param.arg = this;
    BATON_RETURN_IF_ERROR(
        UcxStatus(ucp_worker_set_am_recv_handler(worker_.get(), &param),
                  "ucp_worker_set_am_recv_handler"));
  }
  return absl::OkStatus();
}

void UcxLoop::SendPreamble(Peer& peer) {
  auto preamble = std::make_unique<Outgoing>();
  preamble->peer = &peer;
  preamble->header = kPreamble;
  preamble->internal = true;
  StartSend(std::move(preamble));
}

void UcxLoop::Send(SendOp op) {
  Peer* peer = FindPeer(op.peer);
  CHECK(peer != nullptr);  // a peer with outstanding sends is not removed
  auto outgoing = std::make_unique<Outgoing>();
  outgoing->peer = peer;
  outgoing->header = std::move(op.header);
  const auto spans = regions_->Resolve(op.payload);
  CHECK(spans.ok()) << spans.status();  // as when it was posted
  for (absl::Span<std::byte> span : *spans) {
    outgoing->payload.push_back({span.data(), span.size()});
  }
  outgoing->cookie = op.cookie;
  if (peer->state == PeerState::kDown) {
    mailbox_->EndSend(peer->id);
    handler_->OnSent(peer->id, outgoing->cookie, peer->failure);
    MarkDirty(*peer);
    return;
  }
  // Messages without payload are few and small: they do not wait behind a full
  // window.
  if (outgoing->payload.empty()) {
    StartSend(std::move(outgoing));
    return;
  }
  peer->queue.push_back(std::move(outgoing));
  StartQueued(*peer);
}

void UcxLoop::StartQueued(Peer& peer) {
  while (peer.failure.ok() && !peer.queue.empty() &&
         peer.payloads_in_flight < options_.max_sends_in_flight) {
    std::unique_ptr<Outgoing> next = std::move(peer.queue.front());
    peer.queue.pop_front();
    StartSend(std::move(next));
  }
}

UcxLoop::Buffer UcxLoop::DescribeBuffer(std::vector<ucp_dt_iov_t>& parts,
                                        ucp_request_param_t* param) const {
  Buffer buffer{ucp_dt_make_iov(), parts.data(), parts.size()};
  param->memory_type = UCS_MEMORY_TYPE_HOST;
  if (options_.memory == UcxMemory::kCuda) {
    param->memory_type = UCS_MEMORY_TYPE_CUDA;
    // What comes to a list passes through UCX's hands, and nobody has to know
    // where it goes. To one run of a device's memory UCX brings it by itself,
    // or has a card do it, from where the peer says that it lies
    // (ucx_context.cc).
    if (parts.size() == 1) {
      buffer = {ucp_dt_make_contig(1), parts[0].buffer, parts[0].length};
    }
    // What UCX registers for a single payload it has to take back when that
    // payload's peer dies, and without a cache of such it crashes (1.20.1).
    for (const MappedRegion& region : mapped_) {
      if (!absl::c_all_of(parts, [&region](const ucp_dt_iov_t& part) {
            return region.Contains(part);
          })) {
        continue;
      }
      param->op_attr_mask |= UCP_OP_ATTR_FIELD_MEMH;
      param->memh = region.handle.get();
      break;
    }
  }
  param->datatype = buffer.datatype;
  param->op_attr_mask |=
      UCP_OP_ATTR_FIELD_DATATYPE | UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  return buffer;
}

void UcxLoop::StartSend(std::unique_ptr<Outgoing> outgoing) {
  Peer& peer = *outgoing->peer;
  const bool has_payload = !outgoing->payload.empty();
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_CALLBACK |
                       UCP_OP_ATTR_FIELD_USER_DATA;
  // With REPLY the message carries its endpoint: how the other side knows whose
  // it is. Rendezvous leaves it to the receiver where the bytes go, if
  // anywhere.
  param.flags = UCP_AM_SEND_FLAG_REPLY |
                (has_payload ? UCP_AM_SEND_FLAG_RNDV : UCP_AM_SEND_FLAG_EAGER);
  Buffer payload;
  if (has_payload) payload = DescribeBuffer(outgoing->payload, &param);
  param.cb.send = &UcxLoop::OnSendDone;
  param.user_data = outgoing.get();
  const unsigned id = outgoing->internal ? kPreambleId
                      : has_payload      ? kPayloadId
                                         : kMessageId;
  ++peer.sends_in_flight;
  peer.payloads_in_flight += has_payload;
  // Header and scatter-gather list must stay where they are until completion:
  // they are in *outgoing, which UCX now owns.
  const ucs_status_ptr_t request = ucp_am_send_nbx(
      peer.endpoint, id, outgoing->header.data(), outgoing->header.size(),
      payload.address, payload.count, &param);
  if (UCS_PTR_IS_PTR(request)) {
    outgoing.release();
  } else {
    FinishSend(std::move(outgoing), UCS_PTR_STATUS(request));
  }
}

void UcxLoop::FinishSend(std::unique_ptr<Outgoing> outgoing,
                         ucs_status_t status) {
  Peer& peer = *outgoing->peer;
  --peer.sends_in_flight;
  peer.payloads_in_flight -= !outgoing->payload.empty();
  MarkDirty(peer);
  const absl::Status result = UcxStatus(status, "send");
  if (!result.ok()) Fail(peer, result);
  if (outgoing->internal) return;
  mailbox_->EndSend(peer.id);
  handler_->OnSent(peer.id, outgoing->cookie, result);
}

void UcxLoop::OnSendDone(void* request, ucs_status_t status, void* arg) {
  ucp_request_free(request);
  std::unique_ptr<Outgoing> outgoing(static_cast<Outgoing*>(arg));
  UcxLoop* loop = outgoing->peer->loop;
  loop->FinishSend(std::move(outgoing), status);
}

UcxLoop::Peer* UcxLoop::FindSender(const ucp_am_recv_param_t* param) {
  if (!(param->recv_attr & UCP_AM_RECV_ATTR_FIELD_REPLY_EP)) return nullptr;
  auto it = by_endpoint_.find(param->reply_ep);
  if (it == by_endpoint_.end() || !it->second->failure.ok()) return nullptr;
  return it->second;
}

void UcxLoop::MarkUp(Peer& peer) {
  peer.state = PeerState::kUp;
  peer.was_up = true;
  mailbox_->SetUp(peer.id);
  handler_->OnPeerUp(peer.id, peer.address);
}

// Whether a message of `peer` is to be looked at.
bool UcxLoop::AcceptHeader(Peer* peer, size_t header_bytes) {
  if (peer == nullptr) return false;
  if (header_bytes == 0 || header_bytes > kMaxHeaderBytes) {
    Fail(*peer, absl::InvalidArgumentError(absl::StrCat(
                    "the peer sent a header of ", header_bytes, " bytes")));
    return false;
  }
  if (peer->state == PeerState::kConnecting) {
    if (peer->incoming) {
      Fail(*peer, absl::InvalidArgumentError(
                      "the peer sent a message before its preamble"));
      return false;
    }
    // It overtook the answer to our preamble, and is as good.
    MarkUp(*peer);
  }
  return true;
}

ucs_status_t UcxLoop::OnPreamble(void* arg, const void* header,
                                 size_t header_bytes, void*, size_t,
                                 const ucp_am_recv_param_t* param) {
  auto* loop = static_cast<UcxLoop*>(arg);
  Peer* peer = loop->FindSender(param);
  if (peer == nullptr) return UCS_OK;
  if (header_bytes != std::strlen(kPreamble) ||
      std::memcmp(header, kPreamble, header_bytes) != 0) {
    loop->Fail(*peer, absl::InvalidArgumentError(
                          "the peer speaks another transport protocol"));
    return UCS_OK;
  }
  if (peer->state != PeerState::kConnecting) return UCS_OK;
  if (peer->incoming) {
    peer->owes_preamble = true;
    loop->MarkDirty(*peer);
  }
  loop->MarkUp(*peer);
  return UCS_OK;
}

ucs_status_t UcxLoop::OnMessage(void* arg, const void* header,
                                size_t header_bytes, void*, size_t,
                                const ucp_am_recv_param_t* param) {
  auto* loop = static_cast<UcxLoop*>(arg);
  Peer* peer = loop->FindSender(param);
  if (!loop->AcceptHeader(peer, header_bytes)) return UCS_OK;
  loop->handler_->OnMessage(
      peer->id, ByteSpan(static_cast<const std::byte*>(header), header_bytes));
  return UCS_OK;
}

ucs_status_t UcxLoop::OnPayload(void* arg, const void* header,
                                size_t header_bytes, void* data, size_t bytes,
                                const ucp_am_recv_param_t* param) {
  auto* loop = static_cast<UcxLoop*>(arg);
  Peer* peer = loop->FindSender(param);
  if (!loop->AcceptHeader(peer, header_bytes)) return UCS_OK;
  if (bytes == 0 || bytes > kMaxPayloadBytes) {
    loop->Fail(*peer, absl::InvalidArgumentError(absl::StrCat(
                          "the peer sent a payload of ", bytes, " bytes")));
    return UCS_OK;
  }
  const bool rendezvous = param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV;
  return loop->Land(
      *peer, ByteSpan(static_cast<const std::byte*>(header), header_bytes),
      data, bytes, rendezvous);
}

ucs_status_t UcxLoop::Land(Peer& peer, ByteSpan header, void* data,
                           size_t bytes, bool rendezvous) {
  std::optional<Landing> landing = handler_->OnPayload(peer.id, header, bytes);
  if (!landing.has_value()) return UCS_OK;  // dropped, nothing was touched
  CHECK_LE(landing->extents.size(), kMaxPayloadExtents);
  auto spans = regions_->Resolve(landing->extents);
  CHECK(spans.ok()) << spans.status();
  auto incoming = std::make_unique<Incoming>();
  incoming->peer = &peer;
  incoming->cookie = landing->cookie;
  for (absl::Span<std::byte> span : *spans) {
    incoming->landing.push_back({span.data(), span.size()});
    incoming->bytes += span.size();
  }
  CHECK_EQ(incoming->bytes, bytes);
  ++peer.receives_in_flight;
  if (rendezvous) return StartReceive(peer, std::move(incoming), data);
  if (options_.memory == UcxMemory::kCuda) {
    const absl::Status eager = absl::InvalidArgumentError(
        "the peer sent a payload that waits for nobody: the CPU cannot bring "
        "it to a device");
    Fail(peer, eager);
    --peer.receives_in_flight;
    handler_->OnLanded(peer.id, incoming->cookie, eager);
    return UCS_OK;
  }
  // Eager: the bytes are in UCX's buffer, valid in this callback only.
  const char* from = static_cast<const char*>(data);
  for (const ucp_dt_iov_t& part : incoming->landing) {
    std::memcpy(part.buffer, from, part.length);
    from += part.length;
  }
  FinishReceive(std::move(incoming), UCS_OK, bytes);
  return UCS_OK;
}

ucs_status_t UcxLoop::StartReceive(Peer& peer,
                                   std::unique_ptr<Incoming> incoming,
                                   void* descriptor) {
  size_t received = 0;
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK |
                       UCP_OP_ATTR_FIELD_USER_DATA |
                       UCP_OP_ATTR_FIELD_RECV_INFO;
  const Buffer landing = DescribeBuffer(incoming->landing, &param);
  param.cb.recv_am = &UcxLoop::OnReceiveDone;
  param.user_data = incoming.get();
  param.recv_info.length = &received;
  const ucs_status_ptr_t request = ucp_am_recv_data_nbx(
      worker_.get(), descriptor, landing.address, landing.count, &param);
  if (UCS_PTR_IS_PTR(request)) {
    incoming.release();
    return UCS_INPROGRESS;
  }
  const ucs_status_t status = UCS_PTR_STATUS(request);
  FinishReceive(std::move(incoming), status, received);
  return status == UCS_OK ? UCS_INPROGRESS : UCS_OK;
}

void UcxLoop::FinishReceive(std::unique_ptr<Incoming> incoming,
                            ucs_status_t status, size_t bytes) {
  Peer& peer = *incoming->peer;
  --peer.receives_in_flight;
  MarkDirty(peer);
  absl::Status result = UcxStatus(status, "receive");
  if (result.ok() && bytes != incoming->bytes) {
    result = absl::DataLossError(absl::StrCat("receive: ", bytes, " of ",
                                              incoming->bytes, " bytes came"));
  }
  if (!result.ok()) Fail(peer, result);
  handler_->OnLanded(peer.id, incoming->cookie, result);
}

void UcxLoop::OnReceiveDone(void* request, ucs_status_t status, size_t bytes,
                            void* arg) {
  ucp_request_free(request);
  std::unique_ptr<Incoming> incoming(static_cast<Incoming*>(arg));
  UcxLoop* loop = incoming->peer->loop;
  loop->FinishReceive(std::move(incoming), status, bytes);
}

}  // namespace baton::kv_transfer
