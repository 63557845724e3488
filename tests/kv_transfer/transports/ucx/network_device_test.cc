#include "kv_transfer/transports/ucx/network_device.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <gtest/gtest.h>

namespace baton::kv_transfer {
namespace {

TEST(NetworkDeviceTest, LoopbackAndAnyTakeEveryDevice) {
  for (const char* host :
       {"127.0.0.1", "::1", "0.0.0.0", "::", "203.0.113.77", "no-address"}) {
    EXPECT_EQ(DeviceWithAddress(host), "") << host;
  }
}

TEST(NetworkDeviceTest, AnAddressHasItsDevice) {
  ifaddrs* list = nullptr;
  ASSERT_EQ(getifaddrs(&list), 0);
  for (const ifaddrs* i = list; i != nullptr; i = i->ifa_next) {
    if (i->ifa_addr == nullptr || i->ifa_addr->sa_family != AF_INET ||
        (i->ifa_flags & IFF_LOOPBACK) != 0) {
      continue;
    }
    char text[INET_ADDRSTRLEN];
    ASSERT_NE(inet_ntop(AF_INET,
                        &reinterpret_cast<sockaddr_in*>(i->ifa_addr)->sin_addr,
                        text, sizeof(text)),
              nullptr);
    const std::string name = i->ifa_name;
    EXPECT_EQ(DeviceWithAddress(text), name.substr(0, name.find(':'))) << text;
  }
  freeifaddrs(list);
}

}  // namespace
}  // namespace baton::kv_transfer
