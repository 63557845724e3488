#include "common/rpc/grpc_program.h"

#include <grpc/grpc.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/rpc/grpc_setup.h"

namespace baton::rpc {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

// What the threads of this process are called.
std::vector<std::string> ThreadNames() {
  std::vector<std::string> names;
  for (const auto& thread :
       std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream file(thread.path() / "comm");
    std::string name;
    if (std::getline(file, name)) names.push_back(name);
  }
  return names;
}

TEST(GrpcProgramTest, ItsEndIsThatOfGrpcsThreads) {
  ASSERT_EQ(grpc_is_initialized(), 0) << "not in a process of its own";
  for (int i = 0; i < 20; ++i) {
    const GrpcProgram program;
    // The last of a channel that could not connect goes on gRPC's threads.
    const std::shared_ptr<grpc::Channel> channel =
        MakeControlChannel("127.0.0.1:1");
    channel->GetState(/*try_to_connect=*/true);
    auto server = StartServer("127.0.0.1:0", {});
    ASSERT_TRUE(server.ok()) << server.status();
    // They name themselves, some time after they were started.
    ASSERT_GT(ThreadNames().size(), 1u);
    server->server->Shutdown();
  }
  EXPECT_EQ(grpc_is_initialized(), 0);
  // "default-executor" and "resolver-executor", cut.
  EXPECT_THAT(ThreadNames(), Not(Contains(HasSubstr("execut"))));
}

TEST(GrpcProgramTest, WhatIsStillUsedDoesNotEnd) {
  std::shared_ptr<grpc::Channel> channel = MakeControlChannel("127.0.0.1:1");
  EXPECT_FALSE(AwaitGrpcEnd(absl::Milliseconds(20)));
  channel = nullptr;
  EXPECT_TRUE(AwaitGrpcEnd(absl::Seconds(20)));
}

}  // namespace
}  // namespace baton::rpc
