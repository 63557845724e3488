// What keeps a cluster from starting is said in one line, and ends with exit
// code 1; a wrong flag with 2.
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "baton/v1/worker.grpc.pb.h"
#include "common/rpc/grpc_setup.h"
#include "tests/integration/client.h"
#include "tests/integration/cluster.h"
#include "tests/integration/reference.h"
#include "tests/support/tiny_model.h"

namespace baton::test {
namespace {

using ::testing::HasSubstr;

class StartupTest : public testing::Test {
 protected:
  void SetUp() override {
    model_dir_ = scratch_.path() + "/model";
    ASSERT_TRUE(WriteTinyModel(model_dir_).ok());
  }

  // Runs the program, which is to end by itself with an error.
  RunResult Fails(const std::string& program, Flags flags) {
    if (program == "baton-router") {
      flags.insert(flags.end(),
                   {"--prefill", "127.0.0.1:1", "--decode", "127.0.0.1:1"});
    }
    RunResult result = RunProgram(program, flags);
    EXPECT_EQ(result.exit.Describe(), "exit status 1") << result.err;
    EXPECT_THAT(result.err, HasSubstr(program + ": "));
    return result;
  }

  // A prefill worker with a model of `options` beside a decode worker with the
  // usual one, both ready.
  void LaunchUnlike(const TinyModelOptions& options) {
    const std::string other = scratch_.path() + "/other";
    ASSERT_TRUE(WriteTinyModel(other, options).ok());
    cluster_ = std::make_unique<Cluster>(model_dir_);
    ASSERT_TRUE(cluster_->Launch("baton-decode", "decode-0", {}).ok());
    cluster_->set_model_dir(other);
    ASSERT_TRUE(cluster_->Launch("baton-prefill", "prefill-0", {}).ok());
    cluster_->set_model_dir(model_dir_);
    for (const char* name : {"decode-0", "prefill-0"}) {
      const absl::Status ready = cluster_->process(name).WaitReady(kPatience);
      ASSERT_TRUE(ready.ok()) << ready;
    }
  }

  // These two and a router, which never pairs them, and whose log names
  // `field`. Leaves the answer to one request.
  void StartUnlike(const TinyModelOptions& options, const std::string& field) {
    LaunchUnlike(options);
    const absl::Status status =
        cluster_->StartRouter({"prefill-0"}, {"decode-0"}, {});
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_TRUE(Eventually([&] {
      return absl::StrContains(cluster_->process("router").Log(), field);
    }));
    const auto stub = cluster_->MakeStub();
    answer_ = Generate(*stub, request_, kPatience);
    v1::GetModelResponse model;
    grpc::ClientContext context;
    SetDeadline(&context);
    ASSERT_TRUE(stub->GetModel(&context, {}, &model).ok());
    EXPECT_EQ(model.num_prefill_workers(), 0u);
  }

  ScratchDir scratch_;
  std::string model_dir_;
  std::unique_ptr<Cluster> cluster_;
  const v1::GenerateRequest request_ = GreedyRequest({1, 2, 3}, 4);
  Answer answer_;
};

TEST_F(StartupTest, AMissingModelIsNamed) {
  const std::string missing = scratch_.path() + "/nothing";
  for (const char* program :
       {"baton-prefill", "baton-decode", "baton-worker", "baton-router"}) {
    EXPECT_THAT(Fails(program, {"--model", missing}).err, HasSubstr(missing));
  }
}

TEST_F(StartupTest, APortInUseIsNamed) {
  Cluster cluster(model_dir_);
  auto first = cluster.Launch("baton-decode", "decode-0", {});
  ASSERT_TRUE(first.ok()) << first.status();
  const absl::Status ready = (*first)->WaitReady(kPatience);
  ASSERT_TRUE(ready.ok()) << ready;
  const std::string grpc = cluster.Address("decode-0", "grpc");
  const std::string metrics = cluster.Address("decode-0", "metrics");
  for (const char* program :
       {"baton-prefill", "baton-decode", "baton-worker", "baton-router"}) {
    const Flags common = {"--model", model_dir_};
    Flags flags = common;
    flags.insert(flags.end(), {"--listen", grpc});
    EXPECT_THAT(Fails(program, flags).err, HasSubstr(grpc));
    flags = common;
    flags.insert(flags.end(), {"--metrics", metrics});
    EXPECT_THAT(Fails(program, flags).err, HasSubstr(metrics));
  }
  const std::vector<std::string> data =
      absl::StrSplit(cluster.Address("decode-0", "data"), ':');
  EXPECT_THAT(
      Fails("baton-decode", {"--model", model_dir_, "--data-port", data[1]})
          .err,
      HasSubstr(data[1]));
}

TEST_F(StartupTest, ATransportThatIsNotThereIsNamed) {
  for (const char* program :
       {"baton-prefill", "baton-decode", "baton-worker"}) {
    EXPECT_THAT(Fails(program, {"--model", model_dir_, "--ucx-tls", "rc"}).err,
                HasSubstr("rc"));
  }
}

TEST_F(StartupTest, WrongFlagsAreTwo) {
  for (const char* program : {"baton-prefill", "baton-decode", "baton-worker",
                              "baton-router", "baton"}) {
    for (const Flags& flags :
         {Flags{"--bogus"}, Flags{"--model", model_dir_, "--listen"}}) {
      const RunResult result = RunProgram(program, flags);
      EXPECT_EQ(result.exit.Describe(), "exit status 2")
          << program << " " << flags[0] << "\n"
          << result.err;
      EXPECT_NE(result.err, "") << program;
    }
    const RunResult help = RunProgram(program, {"--help"});
    EXPECT_EQ(help.exit.Describe(), "exit status 0") << program;
    EXPECT_THAT(help.out, HasSubstr("--help"));
  }
  for (const char* program :
       {"baton-prefill", "baton-decode", "baton-worker"}) {
    for (const Flags& flags :
         {Flags{"--threads", "-1"}, Flags{"--block-size", "17"},
          Flags{"--token-budget", "0"}, Flags{"--kv-memory", "lots"}}) {
      Flags all = {"--model", model_dir_};
      all.insert(all.end(), flags.begin(), flags.end());
      const RunResult result = RunProgram(program, all);
      EXPECT_EQ(result.exit.Describe(), "exit status 2")
          << program << " " << flags[0];
      EXPECT_THAT(result.err, HasSubstr(flags[0])) << program;
    }
  }
}

TEST_F(StartupTest, AModelWithoutRoomForKvIsRefused) {
  EXPECT_THAT(
      Fails("baton-decode", {"--model", model_dir_, "--kv-memory", "1KiB"}).err,
      HasSubstr("KV"));
}

// The prefill worker does not fit the router's model. It computes nothing; the
// decode worker, which fits, may serve alone.
TEST_F(StartupTest, AWorkerWithAnotherShapeComputesNothing) {
  TinyModelOptions options;
  options.layers = 3;
  StartUnlike(options, "num_layers (");
  if (!answer_.status.ok()) {
    EXPECT_TRUE(absl::IsUnavailable(answer_.status)) << answer_.status;
    return;
  }
  auto reference = Reference::Load(model_dir_);
  ASSERT_TRUE(reference.ok()) << reference.status();
  EXPECT_EQ(answer_.tokens, (*reference)->Tokens(request_));
  EXPECT_EQ(answer_.last.timing().prefill_worker(), "");
}

// A router that knows less and asks for the pair all the same: the workers
// themselves refuse, and the log of each names the fields that differ.
TEST_F(StartupTest, UnlikeWorkersRefuseEachOther) {
  TinyModelOptions options;
  options.layers = 3;
  LaunchUnlike(options);
  grpc::ClientContext decode_context, prefill_context;
  for (grpc::ClientContext* context : {&decode_context, &prefill_context}) {
    context->set_deadline(absl::ToChronoTime(absl::Now() + kPatience));
  }
  const auto connect = [&](const std::string& name,
                           grpc::ClientContext* context) {
    return v1::WorkerControl::NewStub(
               MakeClientChannel(cluster_->Address(name, "grpc")))
        ->Connect(context);
  };
  const auto decode = connect("decode-0", &decode_context);
  v1::WorkerMessage hello;
  ASSERT_TRUE(decode->Read(&hello));
  ASSERT_TRUE(hello.has_hello());

  const auto prefill = connect("prefill-0", &prefill_context);
  v1::RouterMessage ask;
  ask.mutable_pair()->set_decode_incarnation(hello.hello().incarnation());
  ask.mutable_pair()->set_data_address(hello.hello().data_address());
  ASSERT_TRUE(prefill->Write(ask));
  v1::WorkerMessage answer;
  while (!answer.has_pair()) ASSERT_TRUE(prefill->Read(&answer));
  EXPECT_FALSE(answer.pair().paired());
  EXPECT_THAT(answer.pair().reason(),
              HasSubstr("num_layers (3 here, 2 there)"));
  EXPECT_TRUE(Eventually([&] {
    return absl::StrContains(cluster_->process("prefill-0").Log(),
                             "num_layers (3 here, 2 there)");
  }));
  EXPECT_TRUE(Eventually([&] {
    return absl::StrContains(cluster_->process("decode-0").Log(),
                             "num_layers (2 here, 3 there)");
  }));
  decode_context.TryCancel();
  prefill_context.TryCancel();
}

// Answers are good then, but not the same to the bit: the operator hears of it.
TEST_F(StartupTest, WorkersThatDoNotComputeAlikeServeUnlessToldNot) {
  ClusterShape shape;
  shape.prefill = {{"--cpu-isa", "portable"}};
  shape.decode = {{"--cpu-isa", "avx2"}, {"--cpu-isa", "avx2"}};
  {
    Cluster cluster(model_dir_);
    const absl::Status started = cluster.Start(shape);
    ASSERT_TRUE(started.ok()) << started;
    EXPECT_TRUE(Eventually([&] {
      return absl::StrContains(cluster.process("router").Log(),
                               "do not compute to the same bits: cpu-");
    }));
    EXPECT_TRUE(Generate(*cluster.MakeStub(), request_, kPatience).status.ok());
    const RunResult doctor = RunProgram(
        "baton", {"doctor", "--router", cluster.Address("router", "grpc")});
    EXPECT_EQ(doctor.exit.Describe(), "exit status 0") << doctor.err;
    EXPECT_THAT(doctor.out, HasSubstr("note: workers do not compute to the "
                                      "same bits: cpu-avx2 like decode-0, "
                                      "cpu-portable like prefill-0"));
  }
  Cluster cluster(model_dir_);
  for (const char* name : {"decode-0", "decode-1"}) {
    ASSERT_TRUE(cluster.Launch("baton-decode", name, shape.decode[0]).ok());
  }
  ASSERT_TRUE(
      cluster.Launch("baton-prefill", "prefill-0", shape.prefill[0]).ok());
  for (const char* name : {"decode-0", "decode-1", "prefill-0"}) {
    const absl::Status ready = cluster.process(name).WaitReady(kPatience);
    ASSERT_TRUE(ready.ok()) << ready;
  }
  const absl::Status status = cluster.StartRouter(
      {"prefill-0"}, {"decode-0", "decode-1"}, {"--mixed-backends", "exclude"});
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_TRUE(Eventually([&] {
    return absl::StrContains(
        cluster.process("router").Log(),
        " does not fit and gets no requests: backend (cpu-portable here, "
        "cpu-avx2 there)");
  }));
  EXPECT_TRUE(Eventually([&] {
    return Generate(*cluster.MakeStub(), request_, kPatience).status.ok();
  }));
}

// The same shapes with other weights are another model, and nobody knows which
// of both is meant.
TEST_F(StartupTest, WorkersWithUnlikeWeightsAreNeverPaired) {
  TinyModelOptions options;
  options.seed = 2;
  StartUnlike(options, "identity");
  EXPECT_TRUE(absl::IsUnavailable(answer_.status)) << answer_.status;
  EXPECT_THAT(answer_.tokens, testing::IsEmpty());
}

}  // namespace
}  // namespace baton::test
