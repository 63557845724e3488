#include "cli/cluster_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace baton::cli {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::SizeIs;

v1::WorkerStatus* AddWorker(v1::GetClusterResponse* cluster,
                            const std::string& role, const std::string& name,
                            const std::string& address) {
  v1::WorkerStatus* worker = cluster->add_workers();
  worker->set_role(role);
  worker->set_name(name);
  worker->set_address(address);
  worker->set_connected(true);
  worker->set_usable(true);
  worker->set_total_blocks(1000);
  worker->set_free_blocks(990);
  return worker;
}

v1::LinkStatus* AddLink(v1::GetClusterResponse* cluster,
                        const std::string& prefill, const std::string& decode,
                        const std::string& transport, double bandwidth) {
  v1::LinkStatus* link = cluster->add_links();
  link->set_prefill_worker(prefill);
  link->set_decode_worker(decode);
  link->set_usable(true);
  link->set_transport(transport);
  link->set_bandwidth_bytes(bandwidth);
  link->set_latency_seconds(12e-6);
  return link;
}

TEST(ClusterReportTest, AHealthyClusterIsSaidToBe) {
  v1::GetClusterResponse cluster;
  cluster.set_router_name("router");
  AddWorker(&cluster, "prefill", "prefill-0", "10.0.0.1:7000");
  AddWorker(&cluster, "decode", "decode-0", "10.0.0.2:7000");
  AddLink(&cluster, "prefill-0", "decode-0", "ucx/tcp", 4.2e9);
  EXPECT_THAT(FindTrouble(cluster), IsEmpty());
  EXPECT_THAT(FormatCluster(cluster),
              AllOf(HasSubstr("990 of 1000"), HasSubstr("4.2 GB/s 12 us"),
                    HasSubstr("No trouble found.")));
}

// As each dual worker has one side that does.
TEST(ClusterReportTest, ASideThatStandsByIsNoTrouble) {
  v1::GetClusterResponse cluster;
  AddWorker(&cluster, "decode", "dual-0", "10.0.0.1:7001");
  v1::WorkerStatus* const other =
      AddWorker(&cluster, "prefill", "dual-0", "10.0.0.1:7000");
  other->set_usable(false);
  other->set_standby(true);
  other->set_why_not("stands by, it has the other role");
  EXPECT_THAT(FindTrouble(cluster), IsEmpty());
  EXPECT_THAT(FormatCluster(cluster),
              AllOf(HasSubstr("990 of 1000  stands by\n"),
                    HasSubstr("No trouble found.")));
  other->set_standby(false);
  EXPECT_THAT(FindTrouble(cluster), SizeIs(1));
  // But where nobody decodes.
  other->set_standby(true);
  cluster.mutable_workers(0)->set_usable(false);
  cluster.mutable_workers(0)->set_standby(true);
  ASSERT_THAT(FindTrouble(cluster), SizeIs(1));
  EXPECT_EQ(FindTrouble(cluster)[0].text, "no decode worker gets requests");
}

TEST(ClusterReportTest, TcpOnOneHostIsWorthALine) {
  v1::GetClusterResponse cluster;
  AddWorker(&cluster, "prefill", "prefill-0", "10.0.0.1:7000");
  AddWorker(&cluster, "decode", "decode-0", "10.0.0.1:7001");
  AddLink(&cluster, "prefill-0", "decode-0", "ucx/tcp", 4.2e9);
  const auto findings = FindTrouble(cluster);
  ASSERT_THAT(findings, SizeIs(1));
  EXPECT_FALSE(findings[0].is_problem);
  EXPECT_THAT(findings[0].text, HasSubstr("on one host"));
  cluster.mutable_links(0)->set_transport("ucx/tcp,cuda");
  EXPECT_THAT(FindTrouble(cluster), IsEmpty());
  cluster.mutable_links(0)->set_transport("ucx/tcp,cuda_copy");
  EXPECT_THAT(FindTrouble(cluster), SizeIs(1));
}

TEST(ClusterReportTest, WorkersThatDoNotComputeAlikeAreWorthALine) {
  v1::GetClusterResponse cluster;
  AddWorker(&cluster, "prefill", "prefill-0", "10.0.0.1:7000")
      ->set_backend("cpu-avx2");
  v1::WorkerStatus* const other =
      AddWorker(&cluster, "decode", "decode-0", "10.0.0.2:7000");
  other->set_backend("cpu-avx512bf16");
  const auto findings = FindTrouble(cluster);
  ASSERT_THAT(findings, SizeIs(1));
  EXPECT_FALSE(findings[0].is_problem);
  EXPECT_THAT(findings[0].text,
              HasSubstr("cpu-avx2 like prefill-0, cpu-avx512bf16 like "
                        "decode-0"));
  // What is left out, is said as such.
  other->set_usable(false);
  ASSERT_THAT(FindTrouble(cluster), SizeIs(1));
  EXPECT_TRUE(FindTrouble(cluster)[0].is_problem);
}

TEST(ClusterReportTest, WhatDoesNotWorkIsAProblem) {
  v1::GetClusterResponse cluster;
  AddWorker(&cluster, "prefill", "prefill-0", "10.0.0.1:7000");
  v1::WorkerStatus* gone =
      AddWorker(&cluster, "decode", "decode-0", "10.0.0.2:7000");
  gone->set_connected(false);
  gone->set_usable(false);
  gone->set_why_not("is not connected");
  AddWorker(&cluster, "decode", "decode-1", "10.0.0.3:7000");
  v1::LinkStatus* down =
      AddLink(&cluster, "prefill-0", "decode-1", "ucx/tcp", 1e9);
  down->set_usable(false);
  down->set_why_not("connection refused");
  const auto findings = FindTrouble(cluster);
  ASSERT_THAT(findings, SizeIs(2));
  EXPECT_TRUE(findings[0].is_problem);
  EXPECT_EQ(findings[0].text, "decode worker decode-0 is not connected");
  EXPECT_EQ(findings[1].text, "prefill-0 to decode-1: connection refused");
  EXPECT_THAT(FormatCluster(cluster),
              AllOf(HasSubstr("not connected"), HasSubstr("down"),
                    Not(HasSubstr("No trouble"))));
}

TEST(ClusterReportTest, ASlowLinkIsNamed) {
  v1::GetClusterResponse cluster;
  AddWorker(&cluster, "prefill", "prefill-0", "10.0.0.1:7000");
  AddWorker(&cluster, "decode", "decode-0", "10.0.0.2:7000");
  AddWorker(&cluster, "decode", "decode-1", "10.0.0.3:7000");
  AddLink(&cluster, "prefill-0", "decode-0", "ucx/rc", 20e9);
  AddLink(&cluster, "prefill-0", "decode-1", "ucx/tcp", 2.5e6);
  const auto findings = FindTrouble(cluster);
  ASSERT_THAT(findings, SizeIs(1));
  EXPECT_THAT(findings[0].text,
              HasSubstr("prefill-0 to decode-1: 2.5 MB/s over ucx/tcp, "
                        "the fastest link has 20.0 GB/s"));
}

}  // namespace
}  // namespace baton::cli
