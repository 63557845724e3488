#include "tests/integration/network_namespace.h"

#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>

#include <gtest/gtest.h>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace baton::test {
namespace {

constexpr absl::string_view kPrefix = "baton";

// Those of processes that are no more. Their links go with them.
void RemoveLeftovers() {
  std::error_code none;
  for (const auto& entry :
       std::filesystem::directory_iterator("/run/netns", none)) {
    const std::string name = entry.path().filename().string();
    absl::string_view number = name;
    int pid = 0;
    if (absl::ConsumePrefix(&number, kPrefix) &&
        absl::SimpleAtoi(number, &pid) && kill(pid, 0) != 0 && errno == ESRCH) {
      Shell(absl::StrCat("ip netns del ", name));
    }
  }
}

// Takes this process, and whom it starts, to a network of its own, where its
// devices are in nobody's way: UCX in a process that belongs to another test
// might choose one of them, and lose it. UCX finds devices by /sys, which shows
// those of the network that it was mounted in.
bool GoApart() {
  return unshare(CLONE_NEWNET | CLONE_NEWNS) == 0 &&
         mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
         mount("none", "/sys", "sysfs", 0, nullptr) == 0 &&
         Shell("ip link set lo up");
}

}  // namespace

bool Shell(const std::string& command) {
  return system(absl::StrCat(command, " >/dev/null 2>&1").c_str()) == 0;
}

NetworkNamespace::NetworkNamespace() : name_(absl::StrCat(kPrefix, getpid())) {
  // Once: the threads of this process stay where they were started.
  static const bool apart = GoApart();
  RemoveLeftovers();
  made_ = apart && Shell(absl::StrCat("ip netns add ", name_)) &&
          AddLink(kControl) && AddLink(kData);
}

NetworkNamespace::~NetworkNamespace() {
  for (Link link : {kControl, kData}) {
    Shell(absl::StrCat("ip link del ", Device(link)));
  }
  Shell(absl::StrCat("ip netns del ", name_));
}

std::string NetworkNamespace::Address(Link link) const {
  return absl::StrCat(Net(link), ".2");
}

std::string NetworkNamespace::OurAddress(Link link) const {
  return absl::StrCat(Net(link), ".1");
}

void NetworkNamespace::Set(Link link, bool up) const {
  EXPECT_TRUE(Shell(
      absl::StrCat("ip link set ", Device(link), " ", up ? "up" : "down")));
}

std::string NetworkNamespace::Net(Link link) const {
  return absl::StrCat("10.213.", getpid() % 127 * 2 + link);
}

std::string NetworkNamespace::Device(Link link) const {
  return absl::StrCat("bt", getpid() % 100000, link == kControl ? "c" : "d");
}

bool NetworkNamespace::AddLink(Link link) const {
  const std::string ours = Device(link);
  const std::string theirs = absl::StrCat(ours, "i");
  const std::string in = absl::StrCat("ip -n ", name_, " ");
  return Shell(absl::StrCat("ip link add ", ours, " type veth peer name ",
                            theirs)) &&
         Shell(absl::StrCat("ip link set ", theirs, " netns ", name_)) &&
         Shell(absl::StrCat("ip addr add ", Net(link), ".1/24 dev ", ours)) &&
         Shell(
             absl::StrCat(in, "addr add ", Net(link), ".2/24 dev ", theirs)) &&
         Shell(absl::StrCat("ip link set ", ours, " up")) &&
         Shell(absl::StrCat(in, "link set ", theirs, " up")) &&
         Shell(absl::StrCat(in, "link set lo up"));
}

}  // namespace baton::test
