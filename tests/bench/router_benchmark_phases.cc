#include "tests/bench/router_benchmark_phases.h"

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <utility>

#include <grpcpp/grpcpp.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "router/served_model.h"
#include "tests/bench/router_benchmark_slow.h"

namespace baton::bench {
namespace {

constexpr int kSearch[] = {500,  1000, 2000, 2500,  3000, 4000,
                           5000, 6000, 8000, 10000, 12000};
constexpr double kSettleSeconds = 1;
constexpr double kMaxP99Ms = 50;
constexpr double kMinShare = 0.99;

constexpr int kPlacements = 50;
constexpr int kLongPrompt = 100'000;
// Their stream, one after another.
constexpr int kPlaced = 0;

// A token of kTokenTextBytes letters.
TokenId FindToken(const router::ServedModel& model) {
  for (TokenId id = 0; id < model.vocab_size; ++id) {
    const std::string text = model.tokenizer->TokenBytes(id);
    if (text.size() == kTokenTextBytes &&
        std::all_of(text.begin(), text.end(),
                    [](unsigned char c) { return std::islower(c) != 0; })) {
      return id;
    }
  }
  LOG(FATAL) << "no token of " << kTokenTextBytes << " letters";
}

v1::ModelFingerprint FingerprintOf(const router::ServedModel& model) {
  v1::ModelFingerprint fingerprint;
  fingerprint.set_model_identity("replayed");
  fingerprint.set_architecture(model.architecture);
  fingerprint.set_num_layers(static_cast<uint32_t>(model.num_layers));
  fingerprint.set_num_kv_heads(1);
  fingerprint.set_head_dim(32);
  fingerprint.set_vocab_size(static_cast<uint32_t>(model.vocab_size));
  fingerprint.set_kv_dtype("bf16");
  fingerprint.set_block_size(16);
  fingerprint.set_protocol_version(1);
  return fingerprint;
}

std::string CopyOf(const std::string& model_dir, const ScratchFolder& scratch) {
  const std::string copy = scratch.path() + "/model";
  CopyModelDir(model_dir, copy, ReplayWorkers::kMaxContext);
  return copy;
}

// The sums of histograms: the difference of two is what one request took.
double QueueSeconds(const RouterProcess& router) {
  return router.Metric("baton_ttft_stage_seconds_sum", "stage=\"route_queue\"");
}
double DecisionSeconds(const RouterProcess& router) {
  return router.Metric("baton_router_decision_seconds_sum", "phase=\"all\"");
}

// Makes one request and waits for its end; returns when it was sent.
int64_t CallOnce(v1::Inference::Stub& stub,
                 const v1::GenerateRequest& request) {
  grpc::ClientContext context;
  const int64_t begin = NowNs();
  const auto call = stub.Generate(&context, request);
  v1::GenerateResponse response;
  while (call->Read(&response)) {
  }
  const grpc::Status status = call->Finish();
  CHECK(status.ok()) << status.error_message();
  return begin;
}

int64_t PostOnce(const RouterProcess& router, const std::string& request) {
  const int fd = ConnectTo(router.http_address());
  const int64_t begin = NowNs();
  SendAll(fd, request);
  const std::string answer = ReceiveAll(fd);
  close(fd);
  CHECK(absl::StartsWith(answer, "HTTP/1.1 200")) << answer;
  return begin;
}

bool Carries(const Rows& row) {
  return row["got"] >= kMinShare && row["p99 ms"] < kMaxP99Ms;
}

}  // namespace

RouterBenchmark::RouterBenchmark(const Options& options, TokenBoard* board,
                                 RawServer* raw)
    : options_(options),
      board_(board),
      raw_(raw),
      model_dir_(CopyOf(options.model_dir, scratch_)),
      window_(board) {
  const auto model = router::LoadServedModel(model_dir_, kModelName);
  CHECK(model.ok()) << model.status();
  workers_ = std::make_unique<ReplayWorkers>(options.workers, FindToken(*model),
                                             FingerprintOf(*model), board);
}

std::unique_ptr<RouterProcess> RouterBenchmark::StartRouter(
    const ReplayWorkers::Plan& plan) {
  // The last router's places in the round of steps.
  while (workers_->NumConnected() > 0) SleepSeconds(0.01);
  workers_->SetPlan(plan);
  return std::make_unique<RouterProcess>(options_.program, model_dir_,
                                         workers_->addresses());
}

std::unique_ptr<StreamClients> RouterBenchmark::MakeClients(
    const std::string& protocol, const RouterProcess& router) {
  StreamClients::Options options;
  if (protocol == "http") {
    options.address = router.http_address();
    return MakeHttpClients(options, board_, &window_);
  }
  options.address = router.grpc_address();
  return MakeGrpcClients(options, board_, &window_);
}

Rows RouterBenchmark::Measure(int streams, double rate, double seconds,
                              pid_t server) {
  const ReplayWorkers::Counts before = workers_->counts();
  const CpuTimes begin = ReadCpuTimes(server);
  window_.Open();
  SleepSeconds(seconds);
  Window::Counts counts = window_.Close();
  const CpuShares cpu = Between(begin, ReadCpuTimes(server));
  const ReplayWorkers::Counts after = workers_->counts();
  const double tokens = static_cast<double>(counts.tokens) / counts.seconds;
  const auto events = static_cast<double>(counts.events);
  Rows bytes_per_event;  // of gRPC nobody counts them
  if (counts.bytes > 0) {
    bytes_per_event = static_cast<double>(counts.bytes) / events;
  }
  return {{"streams", streams},
          {"offered tokens/s", streams * rate},
          {"tokens/s", tokens},
          {"got", tokens / (streams * rate)},
          {"events/s", events / counts.seconds},
          {"bytes/event", bytes_per_event},
          {"p50 ms", counts.Quantile(0.5)},
          {"p99 ms", counts.Quantile(0.99)},
          {"max ms", counts.Quantile(1)},
          {"CPU", cpu.process},
          {"tokens/CPU s", tokens / cpu.process},
          {"clients' CPU", cpu.own},
          {"others", cpu.others},
          {"late steps", after.steps_late - before.steps_late}};
}

Rows RouterBenchmark::Carried(const std::string& protocol) {
  const double rate = options_.tokens_per_second;
  std::vector<int> sizes = options_.streams;
  if (sizes.empty()) sizes.assign(std::begin(kSearch), std::end(kSearch));
  const auto router = StartRouter({.tokens_per_second = rate});
  const auto clients = MakeClients(protocol, *router);
  Rows rows = Rows::array();
  int open = 0;
  for (const int size : sizes) {
    const absl::Status opened = clients->Open(open, size - open);
    if (!opened.ok()) {
      LOG(ERROR) << protocol << ", " << size << " streams: " << opened;
      break;
    }
    open = size;
    SleepSeconds(kSettleSeconds);
    rows.push_back(Measure(size, rate, options_.seconds, router->pid()));
    if (Carries(rows.back())) continue;
    // It may have been another process.
    rows.push_back(Measure(size, rate, options_.seconds, router->pid()));
    if (!Carries(rows.back())) break;
  }
  LOG_IF(ERROR, clients->NumEnded() > 0)
      << clients->NumEnded() << " streams ended: " << clients->FirstError();
  return rows;
}

Rows RouterBenchmark::Overdriven(const std::string& protocol) {
  Rows rows = Rows::array();
  for (const auto& [streams, rate] :
       {std::pair(5000, 100.0), std::pair(500, 1000.0)}) {
    // Opened in peace.
    const auto router = StartRouter({.tokens_per_second = 5});
    const auto clients = MakeClients(protocol, *router);
    const absl::Status opened = clients->Open(0, streams);
    if (!opened.ok()) {
      LOG(ERROR) << protocol << ", " << streams << " streams: " << opened;
      continue;
    }
    workers_->SetPlan({.tokens_per_second = rate});
    SleepSeconds(kSettleSeconds);
    rows.push_back(Measure(streams, rate, options_.seconds, router->pid()));
    LOG_IF(ERROR, clients->NumEnded() > 0)
        << clients->NumEnded() << " streams ended: " << clients->FirstError();
  }
  return rows;
}

Rows RouterBenchmark::Raw() {
  Rows rows = Rows::array();
  for (const auto& [streams, rate] :
       {std::pair(2500, 20.0), std::pair(5000, 20.0), std::pair(5000, 0.0)}) {
    raw_->SetTokensPerSecond(rate == 0 ? 5 : rate);
    const auto clients =
        MakeHttpClients({.address = raw_->address()}, board_, &window_);
    const absl::Status opened = clients->Open(0, streams);
    CHECK(opened.ok()) << opened;
    raw_->SetTokensPerSecond(rate);
    SleepSeconds(kSettleSeconds);
    Rows row = Measure(streams, rate, options_.seconds, raw_->pid());
    if (rate == 0) {  // nothing was offered, and all waits in the sockets
      for (const char* field :
           {"offered tokens/s", "got", "p50 ms", "p99 ms", "max ms"}) {
        row[field] = nullptr;
      }
    }
    rows.push_back(std::move(row));
    raw_->SetTokensPerSecond(5);
  }
  return rows;
}

Rows RouterBenchmark::Placement() {
  // So that a first token follows soon.
  const auto router = StartRouter({.tokens_per_second = 200});
  Rows rows = Rows::array();
  for (const char* protocol : {"grpc", "http"}) {
    rows.push_back(MeasurePlacement(protocol, *router));
  }
  return rows;
}

Rows RouterBenchmark::MeasurePlacement(const std::string& protocol,
                                       const RouterProcess& router) {
  const auto stub = router.MakeStub();
  const std::vector<uint32_t> prompt = MakePrompt(kLongPrompt);
  const v1::GenerateRequest grpc_request =
      MakeGenerateRequest(kPlaced, prompt, 1);
  const std::string http_request =
      CompletionRequest(kPlaced, prompt, 1, /*streamed=*/false);
  const bool grpc = protocol == "grpc";
  std::vector<double> queue, decision, whole;
  for (int i = -5; i < kPlacements; ++i) {  // some to warm up
    board_->Forget(kPlaced);
    const double queue_before = QueueSeconds(router);
    const double decision_before = DecisionSeconds(router);
    const int64_t begin =
        grpc ? CallOnce(*stub, grpc_request) : PostOnce(router, http_request);
    if (i < 0) continue;
    queue.push_back((QueueSeconds(router) - queue_before) * 1e3);
    decision.push_back((DecisionSeconds(router) - decision_before) * 1e3);
    whole.push_back(static_cast<double>(board_->ReservedAt(kPlaced) - begin) *
                    1e-6);
  }
  const size_t bytes = grpc ? grpc_request.ByteSizeLong() : http_request.size();
  return {{"protocol", protocol},
          {"prompt tokens", kLongPrompt},
          {"request MB", static_cast<double>(bytes) * 1e-6},
          {"requests", kPlacements},
          {"read to placed, ms", Median(queue)},
          {"decision, ms", Median(decision)},
          {"client to worker, ms", Median(whole)}};
}

Rows RouterBenchmark::Memory(const std::string& protocol) {
  const auto router =
      StartRouter({.tokens_per_second = options_.tokens_per_second,
                   .first_token_only = true});
  const auto clients = MakeClients(protocol, *router);
  // What the first ones cost, such as buffers and threads, is of no stream.
  constexpr int kFirst = 100;
  absl::Status opened = clients->Open(0, kFirst);
  CHECK(opened.ok()) << opened;
  SleepSeconds(kSettleSeconds);
  const int64_t base = ResidentBytes(router->pid());
  Rows rows = Rows::array();
  int open = kFirst;
  for (const int streams : {1000, 5000}) {
    opened = clients->Open(open, streams + kFirst - open);
    CHECK(opened.ok()) << opened;
    open = streams + kFirst;
    SleepSeconds(kSettleSeconds);
    const int64_t now = ResidentBytes(router->pid());
    rows.push_back(
        {{"protocol", protocol},
         {"streams", streams},
         {"RSS without, MB", static_cast<double>(base) * 1e-6},
         {"RSS, MB", static_cast<double>(now) * 1e-6},
         {"KB per stream", static_cast<double>(now - base) * 1e-3 / streams}});
  }
  return rows;
}

Rows RouterBenchmark::Slow() {
  constexpr int kGood = 500, kSilent = 1000, kTrickling = 1000;
  // Longer than the router waits for a request's headers.
  constexpr double kSeconds = 12;
  const double rate = options_.tokens_per_second;
  const auto router = StartRouter({.tokens_per_second = rate});
  const auto clients = MakeClients("http", *router);
  const absl::Status opened = clients->Open(0, kGood);
  CHECK(opened.ok()) << opened;
  SleepSeconds(kSettleSeconds);
  Rows rows = Rows::array();
  const auto add = [&](const char* beside, double seconds) {
    Rows row = {{"beside", beside}};
    row.update(Measure(kGood, rate, seconds, router->pid()));
    rows.push_back(std::move(row));
  };
  add("nobody", options_.seconds);
  {
    const SlowClients slow(router->http_address(), kGood, 0, kTrickling);
    SleepSeconds(kSettleSeconds);
    add("1,000 that send a byte a second", kSeconds);
    rows.back()["came again"] = slow.num_dropped();
  }
  {
    const SlowClients slow(router->http_address(), kGood, kSilent, kTrickling);
    SleepSeconds(kSettleSeconds);
    add("these and 1,000 streams that nobody reads", kSeconds);
    rows.back()["came again"] = slow.num_dropped();
  }
  rows[0]["came again"] = 0;
  LOG_IF(ERROR, clients->NumEnded() > 0)
      << clients->NumEnded() << " streams ended: " << clients->FirstError();
  return rows;
}

Rows RouterBenchmark::Leaving(const std::string& protocol) {
  constexpr int kStreams = 500, kLeaving = 200;
  const auto router =
      StartRouter({.tokens_per_second = options_.tokens_per_second});
  const auto clients = MakeClients(protocol, *router);
  const absl::Status opened = clients->Open(0, kStreams);
  CHECK(opened.ok()) << opened;
  SleepSeconds(kSettleSeconds);
  for (int i = 0; i < kLeaving; ++i) {
    clients->Leave(i);
    SleepSeconds(0.01);
  }
  SleepSeconds(2);
  std::vector<double> ms;
  int missing = 0;
  for (int i = 0; i < kLeaving; ++i) {
    if (board_->CancelledAt(i) == 0) {
      ++missing;
      continue;
    }
    ms.push_back(
        static_cast<double>(board_->CancelledAt(i) - board_->LeftAt(i)) * 1e-6);
  }
  CHECK(!ms.empty());
  std::sort(ms.begin(), ms.end());
  return {{"protocol", protocol},
          {"streams", kStreams},
          {"leave", kLeaving},
          {"p50 ms", ms[ms.size() / 2]},
          {"p99 ms", ms[ms.size() * 99 / 100]},
          {"max ms", ms.back()},
          {"never cancelled", missing}};
}

}  // namespace baton::bench
