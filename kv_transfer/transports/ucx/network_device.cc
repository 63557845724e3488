#include "kv_transfer/transports/ucx/network_device.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <cstring>

#include "absl/cleanup/cleanup.h"
#include "kv_transfer/transports/socket_address.h"

namespace baton::kv_transfer {
namespace {

bool SameAddress(const sockaddr* a, const sockaddr_storage& b) {
  if (a == nullptr || a->sa_family != b.ss_family) return false;
  if (a->sa_family == AF_INET) {
    return std::memcmp(&reinterpret_cast<const sockaddr_in*>(a)->sin_addr,
                       &reinterpret_cast<const sockaddr_in*>(&b)->sin_addr,
                       sizeof(in_addr)) == 0;
  }
  return a->sa_family == AF_INET6 &&
         std::memcmp(&reinterpret_cast<const sockaddr_in6*>(a)->sin6_addr,
                     &reinterpret_cast<const sockaddr_in6*>(&b)->sin6_addr,
                     sizeof(in6_addr)) == 0;
}

}  // namespace

std::string DeviceWithAddress(const std::string& host) {
  const auto address = MakeSocketAddress(host, 1);
  if (!address.ok() || IsAnyAddress(*address)) return "";
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return "";
  const auto free_list = absl::MakeCleanup([list] { freeifaddrs(list); });
  for (const ifaddrs* i = list; i != nullptr; i = i->ifa_next) {
    if (!SameAddress(i->ifa_addr, address->storage)) continue;
    if ((i->ifa_flags & IFF_LOOPBACK) != 0) return "";
    const std::string name = i->ifa_name;
    return name.substr(0, name.find(':'));  // "eth0:1" is a label of eth0
  }
  return "";
}

}  // namespace baton::kv_transfer
