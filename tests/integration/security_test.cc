// Who may talk to whom: clients over TLS with keys, workers with certificates
// of the cluster, and what the others are told.
#include <signal.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/rpc/grpc_setup.h"
#include "tests/integration/raw_call.h"
#include "tests/integration/streams_fixture.h"
#include "tests/support/test_certificates.h"

namespace baton::test {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

class SecurityTest : public StreamsTest {
 protected:
  SecurityTest() : cluster_ca_("cluster"), client_ca_("front") {}

  std::string Path(const std::string& name) const {
    return absl::StrCat(scratch_.path(), "/", name);
  }

  // --cluster-tls for a process, with a certificate for no host: workers move.
  Flags ClusterTls(const std::string& name, TestCa& ca) {
    WriteClusterTls(Path(name), ca.certificate(), ca.Issue({.hosts = ""}));
    return {"--cluster-tls", Path(name)};
  }
  Flags ClusterTls(const std::string& name) {
    return ClusterTls(name, cluster_ca_);
  }

  // What clients see.
  void WriteFront(TestCa& ca) {
    const CertificateAndKey front = ca.Issue();
    WriteFileAtOnce(Path("front.pem"), front.certificate);
    WriteFileAtOnce(Path("front.key"), front.key);
    WriteFileAtOnce(Path("front_ca.pem"), ca.certificate());
  }
  Flags FrontTls() {
    WriteFront(client_ca_);
    return {"--tls-cert", Path("front.pem"), "--tls-key", Path("front.key")};
  }
  static std::shared_ptr<grpc::ChannelCredentials> Trusting(
      const TestCa& ca, const std::string& api_key = "") {
    auto tls = grpc::SslCredentials({.pem_root_certs = ca.certificate()});
    if (api_key.empty()) return tls;
    return grpc::CompositeChannelCredentials(
        tls, grpc::AccessTokenCredentials(api_key));
  }
  void MakeCluster() { cluster_ = std::make_unique<Cluster>(model_dir_); }

  // A call that fails at once where there is no connection.
  absl::Status Ask(std::shared_ptr<grpc::ChannelCredentials> credentials) {
    const auto stub = v1::Inference::NewStub(MakeClientChannel(
        cluster_->Address("router", "grpc"), std::move(credentials)));
    grpc::ClientContext context;
    SetDeadline(&context);
    v1::GetModelResponse response;
    return rpc::FromGrpc(stub->GetModel(&context, {}, &response));
  }

  // Why the router says that a worker gets no requests.
  std::string WhyNot(const std::string& address) {
    grpc::ClientContext context;
    SetDeadline(&context);
    v1::GetClusterResponse cluster;
    const absl::Status status =
        rpc::FromGrpc(stub_->GetCluster(&context, {}, &cluster));
    EXPECT_TRUE(status.ok()) << status;
    for (const v1::WorkerStatus& worker : cluster.workers()) {
      if (worker.address() == address) return worker.why_not();
    }
    return "not named";
  }

  // Starts prefill-0 and decode-0, of which the router has the second alone.
  void StartUnlikePair(const Flags& prefill_flags, const Flags& decode_flags);
  void ExpectServedByDecodeAlone();
  // Starts prefill-0 with these flags beside a good decode worker and a router
  // with `router_flags`, and waits until the router says why it is not used.
  void ExpectRefused(const Flags& prefill_flags, const std::string& why);

  TestCa cluster_ca_;
  TestCa client_ca_;
};

TEST_F(SecurityTest, AllOfAClusterOverTls) {
  MakeCluster();
  cluster_->set_credentials(Trusting(client_ca_));
  Flags router = ClusterTls("router");
  const Flags front = FrontTls();
  router.insert(router.end(), front.begin(), front.end());
  StartCluster({.prefill = {ClusterTls("prefill-0")},
                .decode = {ClusterTls("decode-0")},
                .router = router});
  const auto requests = MakeRequests(6);
  CheckAnswers(requests, RunAndInterrupt(requests, [] {}));
  // Others do not get in.
  TestCa stranger("stranger");
  EXPECT_EQ(Ask(Trusting(stranger)).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(Ask(nullptr).code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(Ask(Trusting(client_ca_)).ok());
  // The command line does.
  const RunResult doctor = RunProgram(
      "baton", {"doctor", "--router", cluster_->Address("router", "grpc"),
                "--tls-ca", Path("front_ca.pem")});
  EXPECT_THAT(doctor.out, HasSubstr("decode-0")) << doctor.err;
}

// What the hand-off is between workers of several hosts, on one.
TEST_F(SecurityTest, KvBetweenHostsIsEncrypted) {
  MakeCluster();
  const auto worker = [this](const std::string& name) {
    Flags flags = ClusterTls(name);
    flags.insert(flags.end(), {"--transport", "tcp"});
    return flags;
  };
  Flags router = ClusterTls("router");
  router.insert(router.end(), {"--placement", "least-load"});
  StartCluster({.prefill = {worker("prefill-0")},
                .decode = {worker("decode-0")},
                .router = router});
  const auto requests = MakeRequests(6);
  CheckAnswers(requests, RunAndInterrupt(requests, [] {}));
  for (const char* name : {"prefill-0", "decode-0"}) {
    const auto metrics =
        HttpGet(cluster_->Address(name, "metrics"), "/metrics");
    ASSERT_TRUE(metrics.ok()) << metrics.status();
    const auto transfers = [&](const std::string& labels) {
      return MetricSum(*metrics, "baton_kv_transfers_total", labels);
    };
    EXPECT_GE(transfers("outcome=\"ok\",transport=\"tcp/tls\""), 6) << name;
    EXPECT_EQ(transfers("transport=\"tcp/tls\""), transfers("")) << name;
  }
  EXPECT_THAT(cluster_->process("decode-0").Log(), HasSubstr(" by tcp/tls,"));
}

// A pair that does not agree is no pair, both sides say why, and requests are
// answered without it.
TEST_F(SecurityTest, WhoSendsKvInPlainTextIsRefused) {
  Flags prefill = ClusterTls("prefill-0");
  prefill.insert(prefill.end(),
                 {"--transport", "tcp", "--kv-encryption", "off"});
  Flags decode = ClusterTls("decode-0");
  decode.insert(decode.end(), {"--transport", "tcp", "--kv-encryption", "tls"});
  ASSERT_NO_FATAL_FAILURE(StartUnlikePair(prefill, decode));
  EXPECT_TRUE(Eventually([&] {
    return absl::StrContains(cluster_->process("router").Log(),
                             "the peer takes KV over TLS only");
  }));
  EXPECT_TRUE(Eventually([&] {
    return absl::StrContains(cluster_->process("decode-0").Log(),
                             "it speaks plain text");
  }));
  ExpectServedByDecodeAlone();
}

TEST_F(SecurityTest, KvEncryptionThatCannotBeIsAnError) {
  ClusterTls("decode-0");
  const auto error = [&](Flags more) {
    more.insert(more.begin(),
                {"--model", model_dir_, "--kv-encryption", "tls"});
    const RunResult result = RunProgram("baton-decode", more);
    EXPECT_FALSE(result.exit.clean());
    return result.err;
  };
  EXPECT_THAT(error({}), HasSubstr("--kv-encryption tls needs --cluster-tls"));
  EXPECT_THAT(
      error({"--cluster-tls", Path("decode-0"), "--transport", "ucx"}),
      HasSubstr("--kv-encryption tls needs --transport auto or tcp, not ucx"));
}

TEST_F(SecurityTest, ClientsShowACertificateWhereItIsAskedFor) {
  MakeCluster();
  const CertificateAndKey client = client_ca_.Issue({.name = "client"});
  cluster_->set_credentials(
      grpc::SslCredentials({.pem_root_certs = client_ca_.certificate(),
                            .pem_private_key = client.key,
                            .pem_cert_chain = client.certificate}));
  Flags router = FrontTls();
  router.insert(router.end(), {"--tls-client-ca", Path("front_ca.pem")});
  StartCluster({.router = router});
  CheckServes();
  EXPECT_EQ(Ask(Trusting(client_ca_)).code(), absl::StatusCode::kUnavailable);
}

TEST_F(SecurityTest, ANewCaTakesOverWhileStreamsRun) {
  MakeCluster();
  cluster_->set_credentials(Trusting(client_ca_));
  Flags router = ClusterTls("router");
  const Flags front = FrontTls();
  router.insert(router.end(), front.begin(), front.end());
  StartCluster({.prefill = {ClusterTls("prefill-0")},
                .decode = {ClusterTls("decode-0")},
                .router = router});
  TestCa new_cluster_ca("next cluster");
  TestCa new_client_ca("next front");
  const auto requests = MakeRequests(8);
  // No stream is interrupted, which is to be placed again. A busy machine may
  // have done that for once: a worker that it does not let answer pings for a
  // second is taken for lost.
  int replaced = -1;
  for (int round = 0; round < 5 && replaced != 0; ++round) {
    const std::vector<Answer> answers = RunAndInterrupt(requests, [&] {
      for (const char* name : {"router", "prefill-0", "decode-0"}) {
        ClusterTls(name, new_cluster_ca);
      }
      WriteFront(new_client_ca);
    });
    replaced = CheckAnswers(requests, answers);
  }
  EXPECT_EQ(replaced, 0);

  // New clients see the new certificate.
  EXPECT_TRUE(Eventually([&] { return Ask(Trusting(new_client_ca)).ok(); }));
  EXPECT_EQ(Ask(Trusting(client_ca_)).code(), absl::StatusCode::kUnavailable);
  stub_ = nullptr;
  cluster_->set_credentials(Trusting(new_client_ca));

  // A worker that starts again knows only the new CA; the router, which runs
  // on, shows it its new certificate.
  const std::string address = cluster_->Address("decode-0", "grpc");
  cluster_->process("decode-0").Signal(SIGTERM);
  ASSERT_TRUE(cluster_->process("decode-0").WaitExit(kPatience).ok());
  const auto again = cluster_->Launch(
      "baton-decode", "decode-0",
      {"--listen", address, "--cluster-tls", Path("decode-0")});
  ASSERT_TRUE(again.ok()) << again.status();
  ASSERT_TRUE((*again)->WaitReady(kPatience).ok());
  const absl::Status joined = cluster_->AwaitJoined(1, 1);
  EXPECT_TRUE(joined.ok()) << joined;
  stub_ = cluster_->MakeStub();
  CheckServes();
}

void SecurityTest::StartUnlikePair(const Flags& prefill_flags,
                                   const Flags& decode_flags) {
  MakeCluster();
  ASSERT_TRUE(
      cluster_->Launch("baton-prefill", "prefill-0", prefill_flags).ok());
  ASSERT_TRUE(cluster_->Launch("baton-decode", "decode-0", decode_flags).ok());
  for (const char* name : {"prefill-0", "decode-0"}) {
    const absl::Status ready = cluster_->process(name).WaitReady(kPatience);
    ASSERT_TRUE(ready.ok()) << ready;
  }
  const absl::Status router =
      cluster_->StartRouter({"prefill-0"}, {"decode-0"}, ClusterTls("router"));
  ASSERT_TRUE(router.ok()) << router;
  const absl::Status joined = cluster_->AwaitJoined(0, 1);
  ASSERT_TRUE(joined.ok()) << joined;
  stub_ = cluster_->MakeStub();
}

void SecurityTest::ExpectServedByDecodeAlone() {
  EXPECT_EQ(WhyNot(cluster_->Address("decode-0", "grpc")), "");
  CheckServes();
  const auto metrics =
      HttpGet(cluster_->Address("prefill-0", "metrics"), "/metrics");
  ASSERT_TRUE(metrics.ok()) << metrics.status();
  EXPECT_EQ(MetricValue(*metrics, "baton_prompt_tokens_total"), 0);
}

void SecurityTest::ExpectRefused(const Flags& prefill_flags,
                                 const std::string& why) {
  ASSERT_NO_FATAL_FAILURE(
      StartUnlikePair(prefill_flags, ClusterTls("decode-0")));
  const std::string address = cluster_->Address("prefill-0", "grpc");
  EXPECT_TRUE(Eventually([&] {
    return absl::StrContains(WhyNot(address), why);
  })) << WhyNot(address);
  EXPECT_THAT(
      cluster_->process("router").Log(),
      HasSubstr(absl::StrCat("cannot connect to worker prefill at ", address)));
  // The others serve, and it gets nothing.
  ExpectServedByDecodeAlone();
}

TEST_F(SecurityTest, AWorkerWithoutACertificateNeverGetsRequests) {
  ExpectRefused({}, "does not speak TLS");
  EXPECT_THAT(cluster_->process("prefill-0").Log(),
              HasSubstr("plain text: no --cluster-tls"));
}

TEST_F(SecurityTest, AWorkerOfAnotherCaNeverGetsRequests) {
  TestCa stranger("stranger");
  ExpectRefused(ClusterTls("prefill-0", stranger),
                "the certificate is not of the CA");
  EXPECT_TRUE(Eventually([&] {
    return absl::StrContains(cluster_->process("prefill-0").Log(),
                             "a TLS connection came to nothing");
  }));
}

TEST_F(SecurityTest, AWorkerThatDoesNotTrustTheRouterSaysSo) {
  // It shows what the router trusts, and trusts another CA itself.
  TestCa stranger("stranger");
  WriteClusterTls(Path("prefill-0"), stranger.certificate(),
                  cluster_ca_.Issue({.hosts = ""}));
  ExpectRefused({"--cluster-tls", Path("prefill-0")}, "is not connected: ");
  EXPECT_TRUE(Eventually([&] {
    return absl::StrContains(cluster_->process("prefill-0").Log(),
                             "the certificate is not of the CA");
  }));
}

TEST_F(SecurityTest, ARouterWithoutACertificateIsRefused) {
  MakeCluster();
  ASSERT_TRUE(
      cluster_->Launch("baton-decode", "decode-0", ClusterTls("decode-0"))
          .ok());
  ASSERT_TRUE(cluster_->process("decode-0").WaitReady(kPatience).ok());
  ASSERT_TRUE(cluster_->StartRouter({}, {"decode-0"}, {}).ok());
  stub_ = cluster_->MakeStub();
  const std::string address = cluster_->Address("decode-0", "grpc");
  EXPECT_TRUE(Eventually([&] {
    return absl::StrContains(WhyNot(address), "is not connected: ");
  }));
  EXPECT_TRUE(Eventually([&] {
    return absl::StrContains(cluster_->process("decode-0").Log(),
                             "does not speak TLS");
  }));
}

TEST_F(SecurityTest, BrokenCertificatesEndTheStartWithTheirName) {
  WriteClusterTls(Path("broken"), cluster_ca_.certificate(),
                  {cluster_ca_.Issue().certificate, client_ca_.Issue().key});
  const RunResult worker = RunProgram(
      "baton-decode", {"--model", model_dir_, "--cluster-tls", Path("broken")});
  EXPECT_FALSE(worker.exit.clean());
  EXPECT_THAT(worker.err, HasSubstr(Path("broken") + "/key.pem"));
  const Flags flags = {"--model", model_dir_, "--decode", "127.0.0.1:1"};
  const auto router = [&](Flags more) {
    more.insert(more.begin(), flags.begin(), flags.end());
    const RunResult result = RunProgram("baton-router", more);
    EXPECT_FALSE(result.exit.clean());
    return result.err;
  };
  EXPECT_THAT(router({"--cluster-tls", Path("broken")}),
              HasSubstr(Path("broken") + "/key.pem"));
  EXPECT_THAT(router({"--tls-cert", Path("none"), "--tls-key", Path("none")}),
              HasSubstr(Path("none")));
  EXPECT_THAT(router({"--tls-cert", Path("none")}), HasSubstr("--tls-key"));
  EXPECT_THAT(router({"--api-keys", Path("none")}), HasSubstr(Path("none")));
}

class ApiKeyTest : public SecurityTest {
 protected:
  struct KeyAndLine {
    std::string key;
    std::string line;
  };
  // By `baton key`.
  KeyAndLine MakeKey(Flags flags) {
    flags.insert(flags.begin(), "key");
    const RunResult result = RunProgram("baton", flags);
    EXPECT_TRUE(result.exit.clean()) << result.err;
    const std::vector<std::string> lines = absl::StrSplit(result.out, '\n');
    EXPECT_EQ(lines.size(), 3u) << result.out;
    return {lines[0], lines[1] + "\n"};
  }
  absl::Status TryToGenerate(
      std::shared_ptr<grpc::ChannelCredentials> credentials) {
    const auto stub = v1::Inference::NewStub(MakeClientChannel(
        cluster_->Address("router", "grpc"), std::move(credentials)));
    return Generate(*stub, GreedyRequest({1, 2, 3}, 5), kPatience).status;
  }
};

TEST_F(ApiKeyTest, OnlyWithAKeyAndWithinItsLimits) {
  const KeyAndLine alice = MakeKey({"alice"});
  const KeyAndLine bob = MakeKey({"bob", "--requests-per-minute", "2"});
  const KeyAndLine carol = MakeKey({"carol"});
  WriteFileAtOnce(Path("keys"), "# keys\n" + alice.line + bob.line);
  MakeCluster();
  cluster_->set_credentials(Trusting(client_ca_, alice.key));
  Flags router = FrontTls();
  router.insert(router.end(), {"--api-keys", Path("keys")});
  StartCluster({.router = router});
  CheckServes();

  // Without, and with one that is not known.
  constexpr auto kUnauthenticated = absl::StatusCode::kUnauthenticated;
  for (const auto& credentials :
       {Trusting(client_ca_), Trusting(client_ca_, carol.key)}) {
    EXPECT_EQ(TryToGenerate(credentials).code(), kUnauthenticated);
    EXPECT_EQ(Ask(credentials).code(), kUnauthenticated);
  }
  // A limit of one key is not the other's.
  const auto with_bob = Trusting(client_ca_, bob.key);
  EXPECT_TRUE(TryToGenerate(with_bob).ok());
  EXPECT_TRUE(TryToGenerate(with_bob).ok());
  const absl::Status exhausted = TryToGenerate(with_bob);
  EXPECT_EQ(exhausted.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(exhausted.message()),
              HasSubstr("2 requests per minute"));
  EXPECT_TRUE(Ask(with_bob).ok());
  CheckServes();

  // Carol comes, bob goes, while the router runs.
  WriteFileAtOnce(Path("keys"), alice.line + carol.line);
  EXPECT_TRUE(Eventually(
      [&] { return TryToGenerate(Trusting(client_ca_, carol.key)).ok(); }));
  EXPECT_EQ(TryToGenerate(with_bob).code(), kUnauthenticated);

  const std::string log = cluster_->process("router").Log();
  for (const KeyAndLine& key : {alice, bob, carol}) {
    EXPECT_THAT(log, Not(HasSubstr(key.key)));
  }
  EXPECT_THAT(log, Not(HasSubstr("Bearer sk")));
  const RunResult doctor = RunProgram(
      "baton", {"doctor", "--router", cluster_->Address("router", "grpc"),
                "--tls-ca", Path("front_ca.pem"), "--api-key", alice.key});
  EXPECT_THAT(doctor.out, HasSubstr("decode-0")) << doctor.err;
}

// What a key's prompts left in prefix caches is found by its tenant only.
TEST_F(ApiKeyTest, TenantsDoNotShareCachedPrefixes) {
  const KeyAndLine alice = MakeKey({"alice", "--tenant", "team"});
  const KeyAndLine bob = MakeKey({"bob", "--tenant", "team"});
  const KeyAndLine carol = MakeKey({"carol"});
  WriteFileAtOnce(Path("keys"), alice.line + bob.line + carol.line);
  MakeCluster();
  cluster_->set_credentials(Trusting(client_ca_, alice.key));
  Flags router = FrontTls();
  router.insert(router.end(), {"--api-keys", Path("keys")});
  StartCluster({.router = router});
  std::vector<TokenId> prompt;
  for (TokenId token = 0; token < 40; ++token) prompt.push_back(token * 3);
  const auto cached = [&](const KeyAndLine& key, const std::string& salt) {
    const auto stub = v1::Inference::NewStub(MakeClientChannel(
        cluster_->Address("router", "grpc"), Trusting(client_ca_, key.key)));
    // Long enough for the report of the hand-off to come before the end.
    v1::GenerateRequest request = GreedyRequest(prompt, 100);
    request.set_cache_salt(salt);
    const Answer answer = Generate(*stub, request, kPatience);
    EXPECT_TRUE(answer.status.ok()) << answer.status;
    return answer.last.usage().cached_prompt_tokens();
  };
  EXPECT_EQ(cached(alice, ""), 0u);
  EXPECT_EQ(cached(carol, ""), 0u);
  EXPECT_EQ(cached(carol, "x"), 0u);
  EXPECT_EQ(cached(alice, "x"), 0u);
  for (const KeyAndLine* key : {&alice, &bob, &carol}) {
    EXPECT_EQ(cached(*key, ""), 32u);
    EXPECT_EQ(cached(*key, "x"), 32u);
  }
}

TEST(KeyCommandTest, RefusesWhatTheRouterWould) {
  for (const Flags& flags :
       {Flags{"key"}, Flags{"key", "a b"}, Flags{"key", "sk-mine"},
        Flags{"key", "a", "--max-concurrent", "0"},
        Flags{"key", "a", "--max-tokens", "many"}}) {
    const RunResult result = RunProgram("baton", flags);
    EXPECT_FALSE(result.exit.clean());
    EXPECT_THAT(result.out, Not(HasSubstr("sk-baton-")));
    EXPECT_THAT(result.err, Not(HasSubstr("terminate")));
  }
}

}  // namespace
}  // namespace baton::test
