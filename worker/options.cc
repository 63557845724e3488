#include "worker/options.h"

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "common/adapter_name.h"
#include "common/log.h"
#include "common/model_name.h"

namespace baton::worker {

bool StagesOnDevice(const WorkerOptions& options) {
  return options.kv_staging == "device" ||
         (options.kv_staging == "auto" && options.transport == "nccl");
}

absl::Status ParseKvMemory(const std::string& text,
                           engine::EngineOptions* options) {
  absl::string_view number = text;
  if (absl::ConsumeSuffix(&number, "%")) {
    double percent = 0;
    // Also refuses NaN.
    if (!absl::SimpleAtod(number, &percent) ||
        !(percent > 0 && percent <= 100)) {
      return absl::InvalidArgumentError(
          absl::StrCat("\"", text, "\" is not a share from above 0% to 100%"));
    }
    options->kv_memory_share = percent / 100;
    return absl::OkStatus();
  }
  std::string bytes = text;
  const std::string error = CLI::AsSizeValue(/*kb_is_1000=*/false)(bytes);
  int64_t value = 0;
  if (!error.empty() || !absl::SimpleAtoi(bytes, &value) || value < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", text,
                     "\" is neither a size, such as 256MiB, nor a share, such "
                     "as 25%"));
  }
  options->kv_memory_bytes = value;
  options->kv_memory_share = 0;
  return absl::OkStatus();
}

absl::StatusOr<engine::AdapterSource> ParseAdapter(const std::string& text) {
  const size_t equals = text.find('=');
  engine::AdapterSource source;
  if (equals == std::string::npos) {
    source = {ModelName(text), text};
  } else {
    source = {text.substr(0, equals), text.substr(equals + 1)};
  }
  if (!IsAdapterName(source.name) || source.dir.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "\"", text, "\" is not NAME=DIR with a name of 1 to ",
        kMaxAdapterNameBytes, " printable characters without spaces"));
  }
  return source;
}

void AddFlags(CLI::App* app, WorkerOptions* o) {
  app->add_option("--model", o->engine.model_dir,
                  "Hugging Face model directory, GGUF file, or what `baton "
                  "quantize` wrote")
      ->required();
  app->add_option_function<std::vector<std::string>>(
         "--adapter",
         [o](const std::vector<std::string>& texts) {
           for (const std::string& text : texts) {
             o->engine.adapters.push_back(ParseAdapter(text).value());
           }
         },
         "NAME=DIR, may be given several times: a LoRA adapter, as PEFT writes "
         "them, which clients ask for in the place of the model's name. With "
         "DIR alone its last part is the name")
      ->check([](const std::string& text) {
        return std::string(ParseAdapter(text).status().message());
      })
      ->allow_extra_args(false);
  app->add_option("--adapter-dir", o->adapter_dir,
                  "Folder whose folders are LoRA adapters, each called as its "
                  "folder is: they are loaded and dropped as they come and go")
      ->check(CLI::ExistingDirectory);
  app->add_option("--adapter-rank", o->engine.adapter_rank,
                  "With --adapter-dir and --device cuda: the highest rank that "
                  "there is room for; steps with adapters take longer for it")
      ->check(CLI::Range(1, engine::kMaxLoraRank))
      ->capture_default_str();
  app->add_option("--name", o->name, "Name of this worker in logs and metrics");
  app->add_option("--listen", o->listen,
                  "HOST:PORT of the control plane (gRPC); port 0 takes a free "
                  "one")
      ->capture_default_str();
  app->add_option("--cluster-tls", o->cluster_tls,
                  "Folder with ca.pem, cert.pem and key.pem: only routers with "
                  "a certificate of that CA may connect, over TLS; and see "
                  "--kv-encryption")
      ->check(CLI::ExistingDirectory);
  app->add_option("--metrics", o->metrics, "HOST:PORT of GET /metrics")
      ->capture_default_str();
  app->add_option_function<std::string>(
         "--metrics-compat",
         [o](const std::string& name) {
           o->metrics_compat =
               name == "vllm" ? metrics::Compat::kVllm : metrics::Compat::kNone;
         },
         "Report metrics under the names of another server, too: vllm")
      ->check(CLI::IsMember({"none", "vllm"}))
      ->default_str("none");
  app->add_option("--data-host", o->data_host,
                  "Numeric address of the data plane: a decode worker listens "
                  "there, and TCP uses the network device that has it (any "
                  "device for loopback)")
      ->capture_default_str();
  app->add_option("--data-port", o->data_port,
                  "Port of the data plane; 0 takes a free one")
      ->check(CLI::Range(0, 65535))
      ->capture_default_str();
  app->add_option(
         "--transport", o->transport,
         "How KV goes to a peer: local (shared memory, same host "
         "only), tcp, ucx, or auto: local where it can be, else tcp, "
         "or ucx where --ucx-tls names more than tcp. nccl: from GPU to "
         "GPU, both workers with --device cuda, each its own GPU")
      ->check(CLI::IsMember({"auto", "local", "tcp", "ucx", "nccl"}))
      ->capture_default_str();
  app->add_option("--ucx-tls", o->ucx_tls, "UCX transports (UCX_TLS)")
      ->capture_default_str();
  app->add_option("--kv-encryption", o->kv_encryption,
                  "KV between hosts. tls: over TCP with TLS, between workers "
                  "with certificates of --cluster-tls, and no other way. off: "
                  "in plain text; who sends it encrypted may. auto: tls where "
                  "--cluster-tls is given and KV goes by TCP, else off")
      ->check(CLI::IsMember({"auto", "tls", "off"}))
      ->capture_default_str();
  app->add_option("--kv-wire", o->kv_wire,
                  "How a prefill worker sends a bf16 cache over slow links: "
                  "exact, or int8 or fp8: half of the bytes, less precise")
      ->check(CLI::IsMember({"exact", "int8", "fp8"}))
      ->capture_default_str();
  app->add_option("--kv-wire-below", o->kv_wire_below_mb_per_s,
                  "Which links are slow: those measured below this many MB/s")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app->add_option("--device", o->engine.backend,
                  "What computes: cpu or cuda (in builds that have it)")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str();
  app->add_option("--tensor-parallel", o->engine.tensor_parallel,
                  "With --device cuda: GPUs that share the model, the first "
                  "ones that the process sees. --kv-memory in bytes is what "
                  "they have together")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  app->add_option("--threads", o->engine.num_threads,
                  "Engine threads; 0 takes the CPUs this process may use")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  app->add_option_function<std::string>(
         "--kv-memory",
         [o](const std::string& text) {
           CHECK(ParseKvMemory(text, &o->engine).ok()) << text;
         },
         "Memory for KV blocks, such as 256MiB, or 25%: a share of what is "
         "free once the weights are loaded")
      ->check([](const std::string& text) {
        engine::EngineOptions ignored;
        return std::string(ParseKvMemory(text, &ignored).message());
      })
      ->default_str("256MiB");
  app->add_option("--kv-staging", o->kv_staging,
                  "With --device cuda: where KV is handed over from and to. "
                  "host: pinned memory. device: the GPU's, by --transport nccl "
                  "or, where UCX was built with CUDA, ucx. auto: device with "
                  "nccl, else host")
      ->check(CLI::IsMember({"auto", "host", "device"}))
      ->capture_default_str();
  app->add_option("--kv-staging-memory", o->engine.kv_staging_bytes,
                  "With --device cuda: memory there, such as 4GiB; no more is "
                  "taken than KV has. The KV of a longer prompt cannot be "
                  "handed over")
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/false))
      ->check(CLI::PositiveNumber)
      ->default_str("4GiB");
  app->add_flag(
      "--pin-threads", o->engine.pin_threads,
      "Keep each engine thread on a CPU of its own: for a worker that "
      "has its CPUs to itself");
  app->add_option("--block-size", o->engine.block_size, "Tokens per KV block")
      ->check(CLI::IsMember({16, 32, 64, 128}))
      ->capture_default_str();
  app->add_option("--weights", o->engine.weights,
                  "How matrices are held: bf16, int8, int4, mxfp4 (experts "
                  "that the checkpoint has so, cpu alone), fp8 (cuda alone), "
                  "or auto: as `baton quantize` packed them, as the "
                  "checkpoint has them (mxfp4, which cuda has in fp8; with "
                  "cuda int4 of GPTQ and AWQ, fp8), else bf16")
      ->check(CLI::IsMember({"auto", "bf16", "fp8", "int8", "int4", "mxfp4"}))
      ->capture_default_str();
  app->add_option("--kv-dtype", o->engine.kv_dtype,
                  "How keys and values are held: bf16, int8 or fp8 (cuda "
                  "alone)")
      ->check(CLI::IsMember({"bf16", "int8", "fp8"}))
      ->capture_default_str();
  app->add_option("--cpu-isa", o->engine.cpu_isa,
                  "Instruction set: portable, avx2 or avx512bf16; the best one "
                  "when not given");
  const CLI::Option* const token_budget =
      app->add_option("--token-budget", o->token_budget,
                      "Most tokens in one step")
          ->check(CLI::Range(1, 1 << 20))
          ->default_str(absl::StrCat(kTokenBudget, ", with --device cuda ",
                                     kDeviceTokenBudget));
  app->parse_complete_callback([token_budget, o] {
    if (token_budget->count() == 0) {
      o->token_budget =
          o->engine.backend == "cpu" ? kTokenBudget : kDeviceTokenBudget;
    }
  });
  app->add_option("--itl-target-ms", o->itl_target_ms,
                  "Decode workers: most ms between two tokens of interactive "
                  "streams without a target of their own; prompts beside them "
                  "come in chunks that keep it. 0: no bound but --token-budget")
      ->check([](const std::string& text) {
        double ms = 0;
        // Also refuses NaN.
        if (absl::SimpleAtod(text, &ms) && ms >= 0 && ms <= 86400e3) return "";
        return "it must be a time from 0 to a day";
      })
      ->capture_default_str();
  app->add_option("--max-sequences", o->max_sequences,
                  "Most sequences at a time")
      ->check(CLI::Range(1, 65536))
      ->capture_default_str();
  app->add_option("--max-queued-tokens", o->max_queued_tokens,
                  "Most prompt tokens that wait")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app->add_option("--output-reserve", o->output_reserve,
                  "Decode workers: tokens of output ahead for which KV blocks "
                  "are set aside; when they run out, sequences are preempted. "
                  "0 sets them aside for the whole output")
      ->check(CLI::Range(0, 1 << 24))
      ->capture_default_str();
  app->add_option("--swap-memory", o->swap_memory_bytes,
                  "Decode workers: host memory, such as 1GiB, for the KV of "
                  "preempted sequences; 0: it is computed again")
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/false))
      ->check(CLI::NonNegativeNumber)
      ->default_str("0");
  app->add_option("--swap-seconds", o->swap_seconds,
                  "How long a sequence waits there for blocks before it is "
                  "computed again elsewhere")
      ->check([](const std::string& text) {
        double seconds = 0;
        // Also refuses NaN.
        if (absl::SimpleAtod(text, &seconds) && seconds >= 0 &&
            seconds <= 3600) {
          return "";
        }
        return "it must be a time from 0 to an hour";
      })
      ->capture_default_str();
  app->add_option("--draft-tokens", o->draft_tokens,
                  "Decode and dual workers, speculative decoding by prompt "
                  "lookup: most guesses at a stream's next tokens, from what "
                  "its prompt and output said before, that a step checks where "
                  "that is predicted to pay; answers stay the same. 0: none")
      ->check(CLI::Range(0, 16))
      ->capture_default_str();
  app->add_option("--draft-weights", o->engine.draft_weights,
                  "Decode and dual workers: with --draft-tokens the model also "
                  "guesses by itself, with its weights once more in memory as "
                  "int8 or int4, where that is predicted to pay; answers stay "
                  "the same")
      ->check(CLI::IsMember({"int8", "int4"}));
  app->add_option("--draft-when", o->draft_always,
                  "Whether --draft-tokens are checked where that is predicted "
                  "to pay, or, to measure what they are worth, wherever there "
                  "are guesses: pays or always")
      ->transform(CLI::CheckedTransformer(
          std::map<std::string, bool>{{"pays", false}, {"always", true}}))
      ->default_str("pays");
  app->add_option("--run-ahead", o->run_ahead,
                  "Decode and dual workers on a GPU: give it the next step "
                  "before the tokens of the one before are known, where that "
                  "can be done: on or off")
      ->transform(CLI::CheckedTransformer(
          std::map<std::string, bool>{{"on", true}, {"off", false}}))
      ->default_str("on");
  app->add_option("--prefix-cache", o->prefix_cache,
                  "Keep KV blocks, while there is room, for prompts that begin "
                  "alike: on or off")
      ->transform(CLI::CheckedTransformer(
          std::map<std::string, bool>{{"on", true}, {"off", false}}))
      ->default_str("on");
  app->add_option("--kv-offload", o->kv_offload_bytes,
                  "A second tier of the prefix cache: space, such as 20GiB, "
                  "for KV blocks that are read back when a prompt begins as an "
                  "earlier one did and the cache has it no more. In host "
                  "memory, or in --kv-offload-dir. 0: none")
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/false))
      ->check(CLI::NonNegativeNumber)
      ->default_str("0");
  app->add_option("--kv-offload-dir", o->kv_offload_dir,
                  "Folder where each worker keeps such blocks in a file of "
                  "that size, which the next one finds when it restarts. The "
                  "file holds prompts and their KV as they are")
      ->check(CLI::ExistingDirectory);
  app->add_option("--drain-seconds", o->drain_seconds,
                  "After SIGTERM, how long to go on with what runs")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app->add_option("--log-format", o->log_format,
                  "Lines of the log: text, or json: an object each")
      ->check(CLI::IsMember({"text", "json"}))
      ->capture_default_str();
  app->add_option("--ready-fd", o->ready_fd,
                  "File descriptor for one line of JSON when ready");
  app->add_flag("--die-with-parent", o->die_with_parent,
                "Drain and exit when the parent process dies");
}

void AddDualFlags(CLI::App* app, WorkerOptions* o) {
  app->add_option("--listen-decode", o->listen_decode,
                  "HOST:PORT of the decode side's control stream; --listen is "
                  "the prefill side's. Default: a free port of its host");
  app->add_option("--role", o->first_role,
                  "Which side gets requests at first, until a router asks for "
                  "the other: prefill or decode")
      ->check(CLI::IsMember({"prefill", "decode"}))
      ->capture_default_str();
}

}  // namespace baton::worker
