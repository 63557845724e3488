#include "cli/up_options.h"

#include "absl/strings/str_cat.h"
#include "cli/host_port.h"
#include "scheduling/placement_policies.h"

namespace baton::cli {

void AddUpFlags(CLI::App* up, UpOptions* options) {
  up->add_option("--model", options->model,
                 "Hugging Face model folder, GGUF file, or what `baton "
                 "quantize` wrote; default: "
                 "models/stories, which ships with the repository");
  up->add_option("--prefill", options->num_prefill,
                 "Prefill workers; default 1 where --dual is 0")
      ->check(CLI::Range(0, 64));
  up->add_option("--decode", options->num_decode,
                 "Decode workers; default 1 where --dual is 0")
      ->check(CLI::Range(0, 64));
  up->add_option("--dual", options->num_dual,
                 "Workers that decode or compute prompts, and change between "
                 "the two by what requests need; default 2, or 0 with "
                 "--prefill or --decode")
      ->check(CLI::Range(0, 64));
  up->add_option("--listen", options->listen,
                 absl::StrCat("HOST:PORT of the router; port 0 takes a free "
                              "one; default ",
                              kDefaultAddress))
      ->check([](const std::string& text) {
        return std::string(ParseHostPort(text).status().message());
      });
  up->add_option("--http", options->http,
                 absl::StrCat("HOST:PORT of the OpenAI API and the console; "
                              "default ",
                              kDefaultHttpAddress,
                              ", or a free port where --listen takes one"))
      ->check([](const std::string& text) {
        return std::string(ParseHostPort(text).status().message());
      });
  up->add_option("--placement", options->placement,
                 absl::StrCat("Which workers a request gets, default ",
                              scheduling::kDefaultPlacementPolicy, ". ",
                              scheduling::DescribePlacementPolicies()))
      ->check(CLI::IsMember(scheduling::PlacementPolicyNames()));
  up->add_option("--device", options->device,
                 "What computes: cpu (default) or cuda (in builds that have "
                 "it); GPUs are dealt out to the workers, and shared where "
                 "there are too few: then give --kv-memory")
      ->check(CLI::IsMember({"cpu", "cuda"}));
  up->add_option("--transport", options->transport,
                 "How KV goes from worker to worker: auto (default), local, "
                 "tcp, ucx, or nccl: from GPU to GPU, where each worker has "
                 "its own")
      ->check(CLI::IsMember({"auto", "local", "tcp", "ucx", "nccl"}));
  up->add_option("--kv-staging", options->kv_staging,
                 "With --device cuda: where workers hand KV over from and to: "
                 "host, device (with --transport nccl, or ucx where it was "
                 "built with CUDA) or auto (default): device with nccl")
      ->check(CLI::IsMember({"auto", "host", "device"}));
  up->add_option("--tensor-parallel", options->tensor_parallel,
                 "With --device cuda: GPUs of each worker, which share the "
                 "model; default 1")
      ->check(CLI::Range(1, 64));
  up->add_option("--kv-memory", options->kv_memory,
                 "KV memory of each worker, such as 256MiB, or 25%: a share "
                 "of what is free once its weights are loaded");
  up->add_option("--kv-offload", options->kv_offload,
                 "A second tier of the prefix cache of each worker: space, "
                 "such as 20GiB, in host memory or in --kv-offload-dir, for KV "
                 "that is read back when a prompt begins as an earlier one "
                 "did; 0 (default): none")
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/false))
      ->check(CLI::NonNegativeNumber);
  up->add_option("--kv-offload-dir", options->kv_offload_dir,
                 "Folder for that, where the next cluster finds it")
      ->check(CLI::ExistingDirectory);
  up->add_option("--output-reserve", options->output_reserve,
                 "Output tokens for which decode workers set KV memory aside "
                 "from the beginning (512); 0: all")
      ->check(CLI::Range(0, 1 << 24));
  up->add_option("--draft-tokens", options->draft_tokens,
                 "Speculative decoding: guesses at a stream's next tokens that "
                 "decode workers check in a step (0)")
      ->check(CLI::Range(0, 16));
  up->add_option("--draft-weights", options->draft_weights,
                 "With --draft-tokens: the model also guesses by itself, with "
                 "its weights once more in memory as int8 or int4")
      ->check(CLI::IsMember({"int8", "int4"}));
  up->add_option("--adapter", options->adapters,
                 "NAME=DIR, may be given several times: a LoRA adapter that "
                 "clients ask for in the place of the model's name")
      ->allow_extra_args(false);
  up->add_option("--adapter-dir", options->adapter_dir,
                 "Folder whose folders are LoRA adapters, which come and go "
                 "with them")
      ->check(CLI::ExistingDirectory);
  up->add_option("--weights", options->weights,
                 "How workers hold matrices: bf16, int8, int4, mxfp4 (experts "
                 "that the checkpoint has so, on CPUs), fp8 (with --device "
                 "cuda), or auto (default): as `baton quantize` packed them, "
                 "as the checkpoint has them (mxfp4, which cuda has in fp8; "
                 "with cuda int4 of GPTQ and AWQ, fp8), else bf16")
      ->check(CLI::IsMember({"auto", "bf16", "int8", "int4", "mxfp4", "fp8"}));
  up->add_option("--kv-dtype", options->kv_dtype,
                 "How workers hold keys and values: bf16 (default), int8 or "
                 "fp8 (with --device cuda)")
      ->check(CLI::IsMember({"bf16", "int8", "fp8"}));
  up->add_option("--threads", options->threads,
                 "Compute threads of each worker; default 0: the CPUs, shared "
                 "out evenly")
      ->check(CLI::Range(0, 1024));
  up->add_option("--ttft-target-ms", options->ttft_target_ms,
                 "Target for the first token of requests that give none")
      ->check(CLI::Range(0.0, 8.64e7));
  up->add_option("--itl-target-ms", options->itl_target_ms,
                 "Target between two tokens of requests that give none")
      ->check(CLI::Range(0.0, 8.64e7));
  up->add_option("--prometheus-targets", options->prometheus_targets,
                 "File that gets the metrics addresses of all processes, for "
                 "Prometheus (docs/monitoring.md)");
  up->add_option("--log-format", options->log_format,
                 "Lines of the logs: text (default), or json: an object each")
      ->check(CLI::IsMember({"text", "json"}));
  up->add_option("--log-dir", options->log_dir,
                 "Folder for the logs of all processes; default: a new one, "
                 "removed after a clean end");
  up->add_option("--start-timeout", options->start_timeout_seconds,
                 "Seconds for the whole start, default 120")
      ->check(CLI::Range(1.0, 86400.0));
  up->add_option("--ready-fd", options->ready_fd,
                 "For scripts: a file descriptor that gets one JSON line, with "
                 "the address, when the cluster can serve");
  up->add_flag("--die-with-parent", options->die_with_parent,
               "For scripts: stop when the parent process ends");
  up->footer(absl::StrCat(
      "Examples:\n  ", options->program, " up\n  ", options->program,
      " up --prefill 2 --decode 2 --model ~/models/SmolLM2-135M\n  ",
      options->program, " up --dual 4\n"));
}

}  // namespace baton::cli
