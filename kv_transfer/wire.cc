#include "kv_transfer/wire.h"

#include <bit>
#include <cstring>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "kv_transfer/byte_order.h"

namespace baton::kv_transfer::wire {
namespace {

enum class Type : uint8_t {
  kHello = 1,
  kHelloReply = 2,
  kKv = 3,
  kCommit = 4,
  kCommitAck = 5,
  kAbort = 6,
  kAbortAck = 7,
  kProbe = 8,
  kProbeReply = 9,
};

absl::Status Malformed(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("malformed message: ", what));
}

// Writes the body, after its type is known.
struct BodyWriter {
  ByteWriter& out;

  void PutHello(const google::protobuf::Message& hello) {
    const std::string bytes = hello.SerializeAsString();
    CHECK_LE(bytes.size(), kMaxHelloBytes);
    out.Put<uint32_t>(bytes.size());
    out.PutBytes(bytes);
  }
  void operator()(const v1::PeerHello& hello) { PutHello(hello); }
  void operator()(const v1::PeerHelloReply& reply) { PutHello(reply); }
  void operator()(const Kv& kv) {
    out.PutEnum(kv.transfer);
    out.Put(kv.generation);
    out.Put(kv.pages.layer);
    out.Put(kv.pages.first_page);
    out.Put(kv.pages.num_pages);
    out.PutEnum(kv.encoding);
  }
  void operator()(const Commit& commit) {
    out.PutEnum(commit.transfer);
    out.Put(commit.generation);
    out.Put(commit.num_layers);
    out.Put(commit.num_pages);
    out.PutEnum(commit.encoding);
    out.Put(commit.record.first_token);
    out.Put(commit.record.next_token_index);
    out.Put(commit.record.num_tokens);
    out.Put(commit.total_bytes);
    out.Put(commit.checksum);
  }
  void operator()(const CommitAck& ack) {
    out.PutEnum(ack.transfer);
    out.Put(ack.generation);
    out.PutEnum(ack.outcome);
  }
  void operator()(const Abort& abort) {
    out.PutEnum(abort.transfer);
    out.Put(abort.generation);
    out.PutEnum(abort.reason);
  }
  void operator()(const AbortAck& ack) {
    out.PutEnum(ack.transfer);
    out.Put(ack.generation);
    out.Put<uint32_t>(0);
  }
  void operator()(const Probe& probe) {
    out.Put(probe.probe);
    out.Put(probe.sequence);
  }
  void operator()(const ProbeReply& reply) {
    out.Put(reply.probe);
    out.Put(reply.sequence);
  }
};

struct TypeOf {
  Type operator()(const v1::PeerHello&) const { return Type::kHello; }
  Type operator()(const v1::PeerHelloReply&) const { return Type::kHelloReply; }
  Type operator()(const Kv&) const { return Type::kKv; }
  Type operator()(const Commit&) const { return Type::kCommit; }
  Type operator()(const CommitAck&) const { return Type::kCommitAck; }
  Type operator()(const Abort&) const { return Type::kAbort; }
  Type operator()(const AbortAck&) const { return Type::kAbortAck; }
  Type operator()(const Probe&) const { return Type::kProbe; }
  Type operator()(const ProbeReply&) const { return Type::kProbeReply; }
};

template <typename Proto>
absl::StatusOr<Body> ReadHello(ByteReader& in) {
  const uint32_t size = in.Get<uint32_t>();
  if (!in.ok() || size != in.rest().size()) {
    return Malformed("hello length does not fit");
  }
  if (size > kMaxHelloBytes) return Malformed("hello too long");
  Proto hello;
  if (!hello.ParseFromArray(in.rest().data(), static_cast<int>(size))) {
    return Malformed("hello does not parse");
  }
  return Body(std::move(hello));
}

bool KnownOutcome(TransferOutcome outcome) {
  return outcome <= TransferOutcome::kLeaseExpired;
}

bool KnownEncoding(WireEncoding encoding) {
  return encoding <= WireEncoding::kFp8;
}

absl::StatusOr<Body> ReadProbe(Type type, ByteReader& in) {
  const uint64_t probe = in.Get<uint64_t>();
  const uint32_t sequence = in.Get<uint32_t>();
  if (!in.Finished()) return Malformed("length does not fit its type");
  if (type == Type::kProbe) return Body(Probe{probe, sequence});
  return Body(ProbeReply{probe, sequence});
}

absl::StatusOr<Body> ReadFixed(Type type, ByteReader& in) {
  Body body;
  bool outcome_ok = true;
  bool encoding_ok = true;
  const TransferId transfer = in.GetEnum<TransferId>();
  const uint32_t generation = in.Get<uint32_t>();
  switch (type) {
    case Type::kHello:
    case Type::kHelloReply:
    case Type::kProbe:
    case Type::kProbeReply:
      LOG(FATAL) << "not about a transfer";
    case Type::kKv: {
      Kv kv{transfer, generation};
      kv.pages.layer = in.Get<uint32_t>();
      kv.pages.first_page = in.Get<uint32_t>();
      kv.pages.num_pages = in.Get<uint32_t>();
      kv.encoding = in.GetEnum<WireEncoding>();
      encoding_ok = KnownEncoding(kv.encoding);
      body = kv;
      break;
    }
    case Type::kCommit: {
      Commit commit{transfer, generation};
      commit.num_layers = in.Get<uint32_t>();
      commit.num_pages = in.Get<uint32_t>();
      commit.encoding = in.GetEnum<WireEncoding>();
      encoding_ok = KnownEncoding(commit.encoding);
      commit.record.first_token = in.Get<int32_t>();
      commit.record.next_token_index = in.Get<uint32_t>();
      commit.record.num_tokens = in.Get<uint32_t>();
      commit.total_bytes = in.Get<uint64_t>();
      commit.checksum = in.Get<uint64_t>();
      body = commit;
      break;
    }
    case Type::kCommitAck: {
      const auto outcome = in.GetEnum<TransferOutcome>();
      outcome_ok = KnownOutcome(outcome);
      body = CommitAck{transfer, generation, outcome};
      break;
    }
    case Type::kAbort: {
      const auto reason = in.GetEnum<TransferOutcome>();
      outcome_ok = KnownOutcome(reason) && reason != TransferOutcome::kOk;
      body = Abort{transfer, generation, reason};
      break;
    }
    case Type::kAbortAck:
      in.Get<uint32_t>();
      body = AbortAck{transfer, generation};
      break;
  }
  if (!in.Finished()) return Malformed("length does not fit its type");
  if (!outcome_ok) return Malformed("unknown outcome");
  if (!encoding_ok) return Malformed("unknown encoding");
  return body;
}

absl::StatusOr<Body> ReadBody(uint8_t type, uint8_t version, ByteReader& in) {
  switch (static_cast<Type>(type)) {
    case Type::kHello:
      return ReadHello<v1::PeerHello>(in);
    case Type::kHelloReply:
      return ReadHello<v1::PeerHelloReply>(in);
    case Type::kKv:
    case Type::kCommit:
    case Type::kCommitAck:
    case Type::kAbort:
    case Type::kAbortAck:
    case Type::kProbe:
    case Type::kProbeReply:
      if (version != kVersion) {
        return Malformed(
            absl::StrCat("version ", version, ", expected ", kVersion));
      }
      return type >= static_cast<uint8_t>(Type::kProbe)
                 ? ReadProbe(static_cast<Type>(type), in)
                 : ReadFixed(static_cast<Type>(type), in);
  }
  return Malformed(absl::StrCat("unknown type ", type));
}

}  // namespace

std::string Encode(const Message& message) {
  ByteWriter out;
  out.Put(kMagic);
  out.Put(kVersion);
  out.PutEnum(std::visit(TypeOf{}, message.body));
  out.Put<uint16_t>(0);
  out.PutEnum(message.from);
  out.PutEnum(message.to);
  std::visit(BodyWriter{out}, message.body);
  return std::move(out).Take();
}

absl::StatusOr<Message> Decode(ByteSpan header) {
  ByteReader in(header);
  const uint32_t magic = in.Get<uint32_t>();
  const uint8_t version = in.Get<uint8_t>();
  const uint8_t type = in.Get<uint8_t>();
  in.Get<uint16_t>();
  Message message;
  message.from = in.GetEnum<Incarnation>();
  message.to = in.GetEnum<Incarnation>();
  if (!in.ok()) return Malformed("shorter than its prefix");
  if (magic != kMagic) return Malformed("not a message of Baton");
  BATON_ASSIGN_OR_RETURN(message.body, ReadBody(type, version, in));
  return message;
}

}  // namespace baton::kv_transfer::wire
