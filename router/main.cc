// baton-router: the front door of a cluster.
#include <stdlib.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <map>
#include <string>

#include <CLI/CLI.hpp>

#include "absl/strings/numbers.h"
#include "common/command_line/completion.h"
#include "common/log.h"
#include "common/process/process.h"
#include "common/rpc/grpc_program.h"
#include "common/status_macros.h"
#include "common/tls/pem_files.h"
#include "router/discovery/dns_resolver.h"
#include "router/discovery/dns_target.h"
#include "router/router_server.h"
#include "router/tracing/otlp_settings.h"
#include "scheduling/placement_policies.h"

namespace baton::router {
namespace {

struct Flags {
  RouterOptions router;
  tls::PemPaths client_tls;
  std::string cluster_tls;
  double request_timeout_seconds = 600;
  double drain_seconds = 10;
  double discovery_interval_seconds = 2;
  int worker_timeout_ms = 900;
  double ttft_target_ms = 0;
  double itl_target_ms = 0;
  double batch_ttft_target_ms = 0;
  double batch_itl_target_ms = 0;
  std::string otlp_endpoint;
  std::string log_format = "text";
  int ready_fd = -1;
  bool die_with_parent = false;
};

// "HOST:PORT" with a port; empty when it is one.
std::string CheckAddress(const std::string& address) {
  const size_t colon = address.rfind(':');
  int port = -1;
  if (colon != std::string::npos && colon > 0 && colon + 1 < address.size() &&
      address.size() - colon <= 6 &&
      address.find_first_not_of("0123456789", colon + 1) == std::string::npos) {
    port = std::stoi(address.substr(colon + 1));
  }
  return port >= 0 && port <= 65535 ? ""
                                    : "\"" + address + "\" is not HOST:PORT";
}

CLI::CheckedTransformer OnOrOff() {
  return CLI::CheckedTransformer(
      std::map<std::string, bool>{{"on", true}, {"off", false}});
}

// The same, or dns:NAME:PORT.
std::string CheckWorkers(const std::string& text) {
  if (!IsDnsTarget(text)) return CheckAddress(text);
  return std::string(ParseDnsTarget(text).status().message());
}

// Where the workers are.
void AddWorkerFlags(CLI::App* app, Flags* flags) {
  RouterOptions& o = flags->router;
  const CLI::Validator workers(CheckWorkers, "HOST:PORT or dns:NAME:PORT");
  app->add_option("--prefill", o.cluster.prefill_addresses,
                  "Control address of a prefill worker, or dns:NAME:PORT: all "
                  "addresses of a name in DNS, as they come and go; may be "
                  "repeated")
      ->check(workers);
  app->add_option("--decode", o.cluster.decode_addresses,
                  "The same of decode workers; may be repeated")
      ->check(workers)
      ->required();
  app->add_option("--discovery-interval", flags->discovery_interval_seconds,
                  "Seconds from one look-up of dns:NAME:PORT to the next")
      ->check(CLI::Range(0.1, 3600.0))
      ->capture_default_str();
  app->add_option("--discovery-server", o.discovery.server,
                  "IP:PORT of the DNS server to ask; default: the machine's")
      ->check([](const std::string& text) {
        return IsDnsServer(text) ? "" : "\"" + text + "\" is not IP:PORT";
      });
  app->add_option("--worker-timeout-ms", flags->worker_timeout_ms,
                  "How long a worker may take to answer a heartbeat before it "
                  "is taken for lost; doubled, up to 8 s, with one that was "
                  "only slow")
      ->check(CLI::Range(100, 60'000))
      ->capture_default_str();
}

void AddSecurityFlags(CLI::App* app, Flags* flags) {
  tls::PemPaths& front = flags->client_tls;
  CLI::Option* const certificate =
      app->add_option("--tls-cert", front.certificate,
                      "PEM file: certificate and chain for clients, who then "
                      "connect over TLS");
  CLI::Option* const key =
      app->add_option("--tls-key", front.key, "PEM file: its key");
  certificate->needs(key);
  key->needs(certificate);
  app->add_option("--tls-client-ca", front.client_ca,
                  "PEM file: only clients with a certificate of this CA may "
                  "connect")
      ->needs(certificate);
  app->add_option("--api-keys", flags->router.api_keys_file,
                  "File of API keys; only clients with one of them are served");
  app->add_option("--cluster-tls", flags->cluster_tls,
                  "Folder with ca.pem, cert.pem and key.pem: only workers with "
                  "a certificate of that CA are used, over TLS")
      ->check(CLI::ExistingDirectory);
}

// Who waits, for how long, and in which order.
void AddLineFlags(CLI::App* app, Flags* flags) {
  scheduling::WaitingLine::Options& line = flags->router.flow.line;
  app->add_option("--max-waiting-requests", line.max_requests,
                  "Most requests that wait for a worker; more are rejected")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app->add_option("--max-late-requests", line.max_late,
                  "Of those, most interactive ones whose first token can not "
                  "come in time any more when they come; more are rejected")
      ->check(CLI::Range(0, 1 << 20))
      ->capture_default_str();
  constexpr double kDayMs = 24 * 3600 * 1e3;
  const auto target = [&](const char* flag, double* into, const char* text) {
    app->add_option(flag, *into, text)
        ->check(CLI::Range(0.0, kDayMs))
        ->capture_default_str();
  };
  target("--ttft-target-ms", &flags->ttft_target_ms,
         "Target for the first token of interactive requests that give none; "
         "0: none");
  target("--itl-target-ms", &flags->itl_target_ms,
         "Target between two tokens of interactive requests that give none");
  target("--batch-ttft-target-ms", &flags->batch_ttft_target_ms,
         "As --ttft-target-ms, of batch requests");
  target("--batch-itl-target-ms", &flags->batch_itl_target_ms,
         "As --itl-target-ms, of batch requests");
}

// What is remembered of the workers' prefix caches.
void AddPrefixFlags(CLI::App* app, RouterOptions* options) {
  PrefixHints::Options& prefixes = options->cluster.prefixes;
  app->add_option("--prefix-index", prefixes.enabled,
                  "Remember which worker has the KV of which prompts, for "
                  "placement: on or off")
      ->transform(OnOrOff())
      ->default_str("on");
  app->add_option("--prefix-index-memory", prefixes.index.max_bytes,
                  "Most memory for that, such as 256MiB: about 25 bytes for "
                  "each KV block of the cluster, and 4 for each worker that "
                  "has it beyond the third")
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/false))
      ->check(CLI::Range(int64_t{1} << 20, int64_t{1} << 40))
      ->default_str("256MiB");
  app->add_option("--prefix-cache-scope", options->door.prefix_scope,
                  "Whose requests share cached prefixes of prompts: those of "
                  "a tenant of --api-keys, or all (shared)")
      ->transform(CLI::CheckedTransformer(std::map<std::string, PrefixScope>{
          {"tenant", PrefixScope::kTenant}, {"shared", PrefixScope::kShared}}))
      ->default_str("tenant");
}

// Where traces go, and which.
void AddTracingFlags(CLI::App* app, Flags* flags) {
  app->add_option("--otlp-endpoint", flags->otlp_endpoint,
                  "OpenTelemetry collector that gets the spans of requests "
                  "(OTLP over HTTP), such as http://collector:4318; default: "
                  "OTEL_EXPORTER_OTLP_ENDPOINT, else none")
      ->check([](const std::string& text) {
        return text.empty() ? "" : tracing::CheckOtlpEndpoint(text);
      });
  app->add_option("--trace-sample-ratio", flags->router.door.trace_sample_ratio,
                  "Share of requests whose spans are exported, 0 to 1; a "
                  "client's traceparent says it for its own")
      ->check([](const std::string& text) {
        double ratio = 0;
        // Also refuses NaN.
        if (absl::SimpleAtod(text, &ratio) && ratio >= 0 && ratio <= 1) {
          return "";
        }
        return "it must be a number from 0 to 1";
      })
      ->capture_default_str();
}

void AddFlags(CLI::App* app, Flags* flags) {
  RouterOptions& o = flags->router;
  const CLI::Validator address(CheckAddress, "HOST:PORT");
  app->add_option("--model", o.model_dir,
                  "Hugging Face model directory, GGUF file, or what `baton "
                  "quantize` wrote")
      ->required();
  app->add_option("--served-model-name", o.served_model_name,
                  "What clients call the model; default: the last part of "
                  "--model");
  app->add_option("--name", o.name, "Name of this router in logs and metrics")
      ->capture_default_str();
  app->add_option("--listen", o.listen,
                  "Where clients connect (gRPC); port 0 takes a free one")
      ->check(address)
      ->capture_default_str();
  o.http.listen = "127.0.0.1:0";
  app->add_option("--http", o.http.listen,
                  "Where HTTP clients connect (OpenAI API, health, console); "
                  "port 0 takes a free one")
      ->check(address)
      ->capture_default_str();
  app->add_option("--http-threads", o.http.threads,
                  "Threads that serve HTTP connections")
      ->check(CLI::Range(1, http::HttpServer::kMaxThreads))
      ->capture_default_str();
  app->add_option_function<double>(
         "--http-ping-seconds",
         [&o](double seconds) {
           o.http.quiet_interval = absl::Seconds(seconds);
         },
         "A stream of HTTP that says nothing for so long, or up to twice, says "
         "that it is alive, for proxies; 0: never")
      ->check(CLI::Range(0.0, 3600.0))
      ->default_str("10");
  app->add_option("--metrics", o.metrics, "Where GET /metrics is served")
      ->check(address)
      ->capture_default_str();
  app->add_option_function<std::string>(
         "--metrics-compat",
         [&o](const std::string& name) {
           o.metrics_compat =
               name == "vllm" ? metrics::Compat::kVllm : metrics::Compat::kNone;
         },
         "Report metrics under the names of another server, too: vllm")
      ->check(CLI::IsMember({"none", "vllm"}))
      ->default_str("none");
  AddWorkerFlags(app, flags);
  app->add_option("--placement", o.placement,
                  "Which workers a request gets. " +
                      scheduling::DescribePlacementPolicies())
      ->check(CLI::IsMember(scheduling::PlacementPolicyNames()))
      ->capture_default_str();
  app->add_option("--local-prefill", o.cluster.registry.local_prefill,
                  "Whether decode workers may compute prompts: on or off. Off, "
                  "requests wait while there is no prefill worker")
      ->transform(OnOrOff())
      ->default_str("on");
  app->add_option(
         "--mixed-backends", o.cluster.registry.mixed_backends,
         "Workers whose backend or instruction set differ, so that "
         "their answers are not the same to the bit: allow, or "
         "exclude all but the largest group that has workers of both kinds")
      ->transform(CLI::CheckedTransformer(
          std::map<std::string, bool>{{"allow", true}, {"exclude", false}}))
      ->default_str("allow");
  app->add_option("--roles", o.cluster.roles.enabled,
                  "Whether dual workers (baton-worker, named as both --prefill "
                  "and --decode) are asked to take the role that requests need "
                  "most: auto or fixed")
      ->transform(CLI::CheckedTransformer(
          std::map<std::string, bool>{{"auto", true}, {"fixed", false}}))
      ->default_str("auto");
  AddLineFlags(app, flags);
  AddPrefixFlags(app, &o);
  app->add_option("--max-output-tokens", o.door.max_output_tokens,
                  "Most output tokens of a request; 0: up to the context")
      ->check(CLI::Range(0, 1 << 24))
      ->capture_default_str();
  app->add_option("--request-timeout", flags->request_timeout_seconds,
                  "Most seconds of a request")
      ->check(CLI::Range(0.001, 86400.0))
      ->capture_default_str();
  app->add_option("--max-attempts", o.flow.max_attempts,
                  "How often a request is tried when workers fail")
      ->check(CLI::Range(1, 100))
      ->capture_default_str();
  app->add_option("--drain-seconds", flags->drain_seconds,
                  "After SIGTERM, how long requests that run may go on")
      ->check(CLI::Range(0.0, 86400.0))
      ->capture_default_str();
  app->add_option("--log-format", flags->log_format,
                  "Lines of the log: text, or json: an object each")
      ->check(CLI::IsMember({"text", "json"}))
      ->capture_default_str();
  AddTracingFlags(app, flags);
  AddSecurityFlags(app, flags);
  app->add_option("--ready-fd", flags->ready_fd,
                  "File descriptor for one line of JSON when ready");
  app->add_flag("--die-with-parent", flags->die_with_parent,
                "Drain and exit when the parent process dies");
}

// The files of --tls-cert and --cluster-tls, when given.
absl::Status OpenCertificates(const Flags& flags, RouterOptions* options) {
  if (!flags.client_tls.certificate.empty()) {
    BATON_ASSIGN_OR_RETURN(options->client_tls,
                           tls::PemFiles::Open(flags.client_tls));
  }
  if (!flags.cluster_tls.empty()) {
    BATON_ASSIGN_OR_RETURN(
        options->cluster_tls,
        tls::PemFiles::Open(tls::ClusterPaths(flags.cluster_tls)));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<RouterServer>> Start(const Flags& flags) {
  RouterOptions options = flags.router;
  BATON_RETURN_IF_ERROR(OpenCertificates(flags, &options));
  BATON_ASSIGN_OR_RETURN(
      options.tracing.otlp,
      tracing::MakeOtlpSettings(
          flags.otlp_endpoint, options.name, BATON_VERSION,
          [](const char* name) -> const char* { return getenv(name); }));
  return RouterServer::Start(options);
}

int Run(const Flags& flags) {
  absl::StatusOr<std::unique_ptr<RouterServer>> router = Start(flags);
  if (!router.ok()) {
    std::fprintf(stderr, "baton-router: %s\n",
                 std::string(router.status().message()).c_str());
    return 1;
  }
  LOG(INFO) << "baton-router " << flags.router.name << ": gRPC "
            << (*router)->address() << ", HTTP " << (*router)->http_address()
            << ", metrics " << (*router)->metrics_address()
            << ((*router)->traces_to().empty() ? "" : ", traces to ")
            << (*router)->traces_to();
  process::ReportReady(flags.ready_fd,
                       {{"name", flags.router.name},
                        {"grpc", (*router)->address()},
                        {"http", (*router)->http_address()},
                        {"metrics", (*router)->metrics_address()}});
  const int signal = process::WaitForSignal();
  LOG(INFO) << "signal " << signal << ": draining";
  (*router)->Drain();
  LOG(INFO) << "drained";
  return 0;
}

int Main(int argc, char** argv) {
  const rpc::GrpcProgram grpc;
  Flags flags;
  CLI::App app(
      "Baton router: takes requests of clients, places them on workers, and "
      "streams the answers.",
      "baton-router");
  app.set_version_flag("--version", "baton-router " BATON_VERSION);
  command_line::AddCompletionFlag(&app);
  AddFlags(&app, &flags);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  flags.router.discovery.interval =
      absl::Seconds(flags.discovery_interval_seconds);
  scheduling::FailureDetector::Options& detector =
      flags.router.cluster.detector;
  detector.patience = absl::Milliseconds(flags.worker_timeout_ms);
  detector.max_patience = std::max(detector.max_patience, detector.patience);
  flags.router.door.request_timeout =
      absl::Seconds(flags.request_timeout_seconds);
  flags.router.loop.drain = absl::Seconds(flags.drain_seconds);
  flags.router.door.targets = flags.router.flow.targets = {
      .interactive = {absl::Milliseconds(flags.ttft_target_ms),
                      absl::Milliseconds(flags.itl_target_ms)},
      .batch = {absl::Milliseconds(flags.batch_ttft_target_ms),
                absl::Milliseconds(flags.batch_itl_target_ms)}};
  InitLogging({.program = "baton-router",
               .name = flags.router.name,
               .format = LogFormats().at(flags.log_format)});
  process::SetUpSignals(flags.die_with_parent);
  return Run(flags);
}

}  // namespace
}  // namespace baton::router

int main(int argc, char** argv) { return baton::router::Main(argc, argv); }
