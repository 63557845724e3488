#include "tests/integration/cluster.h"

#include <signal.h>

#include <chrono>
#include <fstream>
#include <iostream>
#include <iterator>
#include <utility>

#include <gtest/gtest.h>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "common/rpc/grpc_setup.h"
#include "common/status_macros.h"
#include "tests/support/await_that.h"
#include "tests/support/own_loopback.h"

namespace baton::test {
namespace {

std::string ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(in), {});
}

}  // namespace

Cluster::Cluster(std::string model_dir) : model_dir_(std::move(model_dir)) {}

Cluster::~Cluster() {
  const auto router = processes_.find("router");
  if (router != processes_.end()) router->second->Stop(kPatience);
  for (auto& [name, process] : processes_) process->Signal(SIGTERM);
  for (auto& [name, process] : processes_) {
    const cli::ExitState exit = process->Stop(kPatience);
    EXPECT_TRUE(exit.clean() || killed_.count(name) > 0)
        << name << ": " << exit.Describe();
  }
  if (!testing::Test::HasFailure()) return;
  for (const auto& [name, process] : processes_) {
    std::cerr << "---- " << name << ": " << process->Poll()->Describe() << "\n"
              << process->LogTail(60) << "\n";
  }
}

absl::StatusOr<cli::ChildProcess*> Cluster::Launch(const std::string& program,
                                                   const std::string& name,
                                                   const Flags& flags) {
  cli::ChildOptions options;
  options.name = name;
  if (const auto it = launchers_.find(name); it != launchers_.end()) {
    options.command = it->second;
  }
  const Flags common = {
      ProgramPath(program), "--model", model_dir_, "--name", name,
      "--die-with-parent"};
  options.command.insert(options.command.end(), common.begin(), common.end());
  // A worker finds its port free when it is started again.
  if (program != "baton-router" && !absl::c_linear_search(flags, "--listen")) {
    options.command.insert(options.command.end(),
                           {"--listen", OwnLoopback() + ":0"});
  }
  options.command.insert(options.command.end(), flags.begin(), flags.end());
  options.log_path = absl::StrCat(logs_.path(), "/", name, ".log");
  BATON_ASSIGN_OR_RETURN(std::unique_ptr<cli::ChildProcess> process,
                         cli::ChildProcess::Start(std::move(options)));
  cli::ChildProcess* const raw = process.get();
  processes_[name] = std::move(process);
  killed_.erase(name);
  return raw;
}

absl::Status Cluster::Start(const ClusterShape& shape) {
  std::vector<std::string> prefill;
  std::vector<std::string> decode;
  for (const Flags& flags : shape.prefill) {
    prefill.push_back(absl::StrCat("prefill-", prefill.size()));
    BATON_RETURN_IF_ERROR(
        Launch("baton-prefill", prefill.back(), flags).status());
  }
  for (const Flags& flags : shape.decode) {
    decode.push_back(absl::StrCat("decode-", decode.size()));
    BATON_RETURN_IF_ERROR(
        Launch("baton-decode", decode.back(), flags).status());
  }
  auto num_prefill = static_cast<int>(prefill.size());
  auto num_decode = static_cast<int>(decode.size());
  for (size_t i = 0; i < shape.dual.size(); ++i) {
    const std::string name = absl::StrCat("dual-", i);
    BATON_RETURN_IF_ERROR(Launch("baton-worker", name, shape.dual[i]).status());
    prefill.push_back(name);
    decode.push_back(name);
    ++(absl::c_linear_search(shape.dual[i], "prefill") ? num_prefill
                                                       : num_decode);
  }
  for (auto& [name, process] : processes_) {
    BATON_RETURN_IF_ERROR(process->WaitReady(kPatience));
  }
  BATON_RETURN_IF_ERROR(StartRouter(prefill, decode, shape.router));
  return AwaitJoined(num_prefill, num_decode);
}

absl::Status Cluster::StartRouter(const std::vector<std::string>& prefill,
                                  const std::vector<std::string>& decode,
                                  const Flags& flags) {
  Flags all = flags;
  // Tests want hand-offs; the default leaves them out where they do not pay.
  if (!absl::c_linear_search(flags, "--placement")) {
    all.insert(all.end(), {"--placement", "least-load"});
  }
  for (const std::string& name : prefill) {
    all.insert(all.end(), {"--prefill", Address(name, "grpc")});
  }
  for (const std::string& name : decode) {
    const bool dual = process(name).ready().contains("grpc_decode");
    all.insert(all.end(),
               {"--decode", Address(name, dual ? "grpc_decode" : "grpc")});
  }
  BATON_ASSIGN_OR_RETURN(cli::ChildProcess * router,
                         Launch("baton-router", "router", all));
  return router->WaitReady(kPatience);
}

absl::Status Cluster::AwaitJoined(int num_prefill, int num_decode,
                                  absl::Duration timeout) {
  const std::unique_ptr<v1::Inference::Stub> stub = MakeStub();
  v1::GetModelResponse model;
  const bool joined = Eventually(
      [&] {
        grpc::ClientContext context;
        SetDeadline(&context);
        return stub->GetModel(&context, {}, &model).ok() &&
               static_cast<int>(model.num_prefill_workers()) == num_prefill &&
               static_cast<int>(model.num_decode_workers()) == num_decode;
      },
      timeout);
  if (joined) return absl::OkStatus();
  return absl::DeadlineExceededError(
      absl::StrCat("workers did not join: ", model.ShortDebugString()));
}

cli::ChildProcess& Cluster::process(const std::string& name) {
  const auto it = processes_.find(name);
  CHECK(it != processes_.end()) << name;
  return *it->second;
}

void Cluster::Kill(const std::string& name) {
  killed_.insert(name);
  process(name).Signal(SIGKILL);
}

std::string Cluster::Address(const std::string& name, const std::string& kind) {
  return process(name).ready().at(kind);
}

std::unique_ptr<v1::Inference::Stub> Cluster::MakeStub() {
  return v1::Inference::NewStub(
      MakeClientChannel(Address("router", "grpc"), credentials_));
}

std::shared_ptr<grpc::Channel> MakeClientChannel(
    const std::string& address,
    std::shared_ptr<grpc::ChannelCredentials> credentials) {
  grpc::ChannelArguments args;
  args.SetMaxReceiveMessageSize(rpc::kMaxMessageBytes);
  args.SetMaxSendMessageSize(rpc::kMaxMessageBytes);
  args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  args.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  args.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  args.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  if (credentials == nullptr) credentials = grpc::InsecureChannelCredentials();
  return grpc::CreateCustomChannel(address, credentials, args);
}

void SetDeadline(grpc::ClientContext* context) {
  context->set_deadline(std::chrono::system_clock::now() +
                        absl::ToChronoMilliseconds(kPatience));
}

std::string ProgramPath(const std::string& name) {
  return absl::StrCat(BATON_BINARY_DIR, "/bin/", name);
}

RunResult RunProgram(const std::string& program, const Flags& flags,
                     absl::Duration timeout) {
  const ScratchDir dir;
  const std::string out = dir.path() + "/out";
  const std::string err = dir.path() + "/err";
  cli::ChildOptions options;
  options.name = program;
  options.ready_line = false;
  options.log_path = dir.path() + "/log";
  // The shell only parts the two outputs; exec makes it the program.
  options.command = {"/bin/sh", "-c",
                     absl::StrCat("exec \"$0\" \"$@\" >", out, " 2>", err),
                     ProgramPath(program)};
  options.command.insert(options.command.end(), flags.begin(), flags.end());
  auto process = cli::ChildProcess::Start(std::move(options));
  CHECK(process.ok()) << process.status();
  absl::StatusOr<cli::ExitState> exit = (*process)->WaitExit(timeout);
  if (!exit.ok()) exit = (*process)->Stop(absl::ZeroDuration());
  return {*exit, ReadFile(out), ReadFile(err)};
}

bool Eventually(const std::function<bool()>& condition,
                absl::Duration timeout) {
  return AwaitThat(condition, timeout);
}

}  // namespace baton::test
