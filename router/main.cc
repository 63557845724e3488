// baton-router: the front door of a cluster.
#include <cstdio>
#include <string>

#include <CLI/CLI.hpp>

#include "absl/synchronization/mutex.h"
#include "common/log.h"
#include "common/process/process.h"
#include "router/router_server.h"

namespace baton::router {
namespace {

struct Flags {
  RouterOptions router;
  double request_timeout_seconds = 600;
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

void AddFlags(CLI::App* app, Flags* flags) {
  RouterOptions& o = flags->router;
  const CLI::Validator address(CheckAddress, "HOST:PORT");
  app->add_option("--model", o.model_dir,
                  "Hugging Face model directory or GGUF file")
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
  app->add_option("--metrics", o.metrics, "Where GET /metrics is served")
      ->check(address)
      ->capture_default_str();
  app->add_option("--prefill", o.cluster.prefill_addresses,
                  "Control address of a prefill worker; may be repeated")
      ->check(address);
  app->add_option("--decode", o.cluster.decode_addresses,
                  "Control address of a decode worker; may be repeated")
      ->check(address)
      ->required();
  app->add_option("--max-waiting-requests", o.flow.max_waiting_requests,
                  "Most requests that wait for a worker; more are rejected")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app->add_option("--max-output-tokens", o.service.max_output_tokens,
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
  app->add_option("--ready-fd", flags->ready_fd,
                  "File descriptor for one line of JSON when ready");
  app->add_flag("--die-with-parent", flags->die_with_parent,
                "Drain and exit when the parent process dies");
}

int Run(const Flags& flags) {
  absl::StatusOr<std::unique_ptr<RouterServer>> router =
      RouterServer::Start(flags.router);
  if (!router.ok()) {
    std::fprintf(stderr, "baton-router: %s\n",
                 std::string(router.status().message()).c_str());
    return 1;
  }
  LOG(INFO) << "baton-router " << flags.router.name << ": gRPC "
            << (*router)->address() << ", metrics "
            << (*router)->metrics_address();
  process::ReportReady(flags.ready_fd,
                       {{"name", flags.router.name},
                        {"grpc", (*router)->address()},
                        {"metrics", (*router)->metrics_address()}});
  const int signal = process::WaitForSignal();
  LOG(INFO) << "signal " << signal << ": draining";
  (*router)->Drain();
  LOG(INFO) << "drained";
  return 0;
}

int Main(int argc, char** argv) {
  // As in worker/worker_process.cc.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  Flags flags;
  CLI::App app("Baton router", "baton-router");
  AddFlags(&app, &flags);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  flags.router.service.request_timeout =
      absl::Seconds(flags.request_timeout_seconds);
  InitLogging("baton-router");
  process::SetUpSignals(flags.die_with_parent);
  return Run(flags);
}

}  // namespace
}  // namespace baton::router

int main(int argc, char** argv) { return baton::router::Main(argc, argv); }
