#include "worker/worker_hello.h"

#include <algorithm>

#include "common/process/process.h"
#include "proto/fingerprint.h"
#include "worker/kv_blocks.h"

namespace baton::worker {
namespace {

v1::ModelFingerprint Fingerprint(const engine::Engine& engine) {
  const engine::KvLayout& kv = engine.kv_layout();
  v1::ModelFingerprint fingerprint;
  fingerprint.set_model_identity(engine.model_identity());
  fingerprint.set_architecture(
      engine::ArchitectureName(engine.model().architecture));
  fingerprint.set_num_layers(kv.num_layers);
  fingerprint.set_num_kv_heads(kv.num_kv_heads);
  fingerprint.set_head_dim(kv.head_dim);
  fingerprint.set_vocab_size(engine.model().vocab_size);
  fingerprint.set_kv_dtype(engine::KvDtypeName(kv.dtype));
  fingerprint.set_block_size(kv.block_size);
  fingerprint.set_protocol_version(proto::kPeerProtocolVersion);
  return fingerprint;
}

}  // namespace

v1::PeerHello MakePeerHello(v1::WorkerRole role, const std::string& name,
                            const engine::Engine& engine) {
  v1::PeerHello self;
  self.set_role(role);
  self.set_incarnation(static_cast<uint64_t>(process::DrawIncarnation()));
  self.set_worker_name(name);
  *self.mutable_fingerprint() = Fingerprint(engine);
  return self;
}

v1::WorkerHello MakeWorkerHello(const WorkerOptions& options,
                                const v1::PeerHello& self,
                                const engine::Engine& engine,
                                const std::string& data_address,
                                int32_t num_loops) {
  v1::WorkerHello hello;
  hello.set_role(self.role());
  hello.set_worker_name(options.name);
  hello.set_incarnation(self.incarnation());
  *hello.mutable_fingerprint() = self.fingerprint();
  hello.set_backend(engine.backend_name());
  hello.set_data_address(data_address);
  hello.set_total_blocks(engine.kv_layout().num_blocks);
  hello.set_max_sequences(options.max_sequences);
  int64_t max_context = engine.model().max_position;
  if (const engine::KvStage* const stage = engine.kv_stage();
      stage != nullptr && self.role() == v1::WORKER_ROLE_PREFILL) {
    max_context = std::min(
        max_context,
        int64_t{StagedShare(*stage, num_loops, options.kv_offload_bytes > 0)} *
            engine.kv_layout().block_size);
  }
  hello.set_max_context(static_cast<uint32_t>(max_context));
  hello.set_max_queued_tokens(options.max_queued_tokens);
  hello.set_token_budget(static_cast<uint32_t>(options.token_budget));
  hello.set_itl_target_ms(options.itl_target_ms);
  if (self.role() == v1::WORKER_ROLE_DECODE) {
    hello.set_output_reserve(static_cast<uint32_t>(options.output_reserve));
  }
  hello.set_kv_bytes_per_token(static_cast<uint64_t>(
      engine.kv_layout().block_bytes() / engine.kv_layout().block_size));
  for (const engine::AdapterInfo& adapter : engine.adapters()) {
    v1::Adapter* const wire = hello.add_adapters();
    wire->set_name(adapter.name);
    wire->set_identity(adapter.identity);
  }
  return hello;
}

}  // namespace baton::worker
