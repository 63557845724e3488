#include "kv_transfer/transports/socket_address.h"

#include <gtest/gtest.h>

namespace baton::kv_transfer {
namespace {

TEST(SocketAddressTest, NumericAddressesSurviveTheTrip) {
  for (const char* text : {"127.0.0.1:4000", "[::1]:65535", "0.0.0.0:1"}) {
    auto address = ParseSocketAddress(text);
    ASSERT_TRUE(address.ok()) << address.status();
    EXPECT_EQ(FormatSocketAddress(address->storage), text);
  }
}

TEST(SocketAddressTest, OthersAreRefusedByName) {
  for (const char* text :
       {"", ":", "127.0.0.1", "127.0.0.1:", "127.0.0.1:0", "127.0.0.1:65536",
        "127.0.0.1:-1", "localhost:80", "256.0.0.1:80", "[::1:80", ":80"}) {
    auto address = ParseSocketAddress(text);
    EXPECT_EQ(address.status().code(), absl::StatusCode::kInvalidArgument)
        << text;
  }
  EXPECT_EQ(ParseSocketAddress("localhost:80").status().message(),
            "host 'localhost' is not a numeric address");
  EXPECT_EQ(ParseSocketAddress("nccl:127.0.0.1:80").status().message(),
            "the peer at nccl:127.0.0.1:80 speaks nccl alone");
}

TEST(SocketAddressTest, KnowsAnyAddress) {
  EXPECT_TRUE(IsAnyAddress(*MakeSocketAddress("0.0.0.0", 1)));
  EXPECT_TRUE(IsAnyAddress(*MakeSocketAddress("::", 1)));
  EXPECT_FALSE(IsAnyAddress(*MakeSocketAddress("127.0.0.1", 1)));
  EXPECT_FALSE(IsAnyAddress(*MakeSocketAddress("::1", 1)));
}

}  // namespace
}  // namespace baton::kv_transfer
