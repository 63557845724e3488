#include "tests/integration/slow_link.h"

#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "tests/integration/network_namespace.h"

namespace baton::test {
namespace {

// More than any packet of a device with the usual MTU of 1,500.
constexpr size_t kMaxPacketBytes = 4096;
// Between two looks at the other direction.
constexpr int kMaxPacketsAtOnce = 64;

absl::Status Errno(const std::string& what) {
  return absl::ErrnoToStatus(errno, what);
}

// A TUN device in the namespace of the calling thread.
absl::StatusOr<ScopedFd> MakeDevice(const std::string& device) {
  ScopedFd fd(open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC));
  if (!fd.valid()) return Errno("cannot open /dev/net/tun");
  ifreq request = {};
  request.ifr_flags = IFF_TUN | IFF_NO_PI;
  device.copy(request.ifr_name, IFNAMSIZ - 1);
  if (ioctl(fd.get(), TUNSETIFF, &request) != 0) {
    return Errno(absl::StrCat("cannot make the TUN device ", device));
  }
  return fd;
}

absl::StatusOr<ScopedFd> MakeDeviceIn(const std::string& network_namespace,
                                      const std::string& device) {
  if (network_namespace.empty()) return MakeDevice(device);
  const std::string path = absl::StrCat("/run/netns/", network_namespace);
  const ScopedFd there(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!there.valid()) return Errno(absl::StrCat("cannot open ", path));
  absl::StatusOr<ScopedFd> made;
  // A thread enters the namespace, and never comes back.
  std::thread visitor([&] {
    made = setns(there.get(), CLONE_NEWNET) == 0
               ? MakeDevice(device)
               : Errno(absl::StrCat("cannot enter ", path));
  });
  visitor.join();
  return made;
}

absl::StatusOr<ScopedFd> MakeEnd(const SlowLink::End& end,
                                 const std::string& device) {
  BATON_ASSIGN_OR_RETURN(ScopedFd fd,
                         MakeDeviceIn(end.network_namespace, device));
  const std::string ip =
      end.network_namespace.empty()
          ? "ip "
          : absl::StrCat("ip -n ", end.network_namespace, " ");
  if (!Shell(absl::StrCat(ip, "addr add ", end.address, " dev ", device)) ||
      !Shell(absl::StrCat(ip, "link set ", device, " up"))) {
    return absl::FailedPreconditionError(
        absl::StrCat("cannot give ", device, " the address ", end.address));
  }
  return fd;
}

}  // namespace

absl::StatusOr<std::unique_ptr<SlowLink>> SlowLink::Create(
    const End& a, const End& b, const LineOptions& line) {
  const std::string prefix = absl::StrCat("bs", getpid() % 100000);
  std::array<ScopedFd, 2> devices;
  BATON_ASSIGN_OR_RETURN(devices[0], MakeEnd(a, prefix + "a"));
  BATON_ASSIGN_OR_RETURN(devices[1], MakeEnd(b, prefix + "b"));
  ScopedFd wake(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (!wake.valid()) return Errno("eventfd");
  return std::unique_ptr<SlowLink>(
      new SlowLink(std::move(devices), std::move(wake), line));
}

SlowLink::SlowLink(std::array<ScopedFd, 2> devices, ScopedFd wake,
                   const LineOptions& line)
    : devices_(std::move(devices)),
      wake_(std::move(wake)),
      lines_{PacketLine(line), PacketLine(line)},
      thread_([this] { Run(); }) {}

SlowLink::~SlowLink() {
  {
    absl::MutexLock lock(&mu_);
    stop_ = true;
  }
  Wake();
  thread_.join();
}

void SlowLink::Cut(absl::Duration how_long) {
  {
    absl::MutexLock lock(&mu_);
    cut_until_ = Clock::Monotonic()->Now() + how_long;
  }
  Wake();
}

void SlowLink::Heal() { Cut(-absl::InfiniteDuration()); }

SlowLink::Stats SlowLink::stats() const {
  absl::MutexLock lock(&mu_);
  return stats_;
}

void SlowLink::Run() {
  for (;;) {
    const absl::Time now = Clock::Monotonic()->Now();
    {
      absl::MutexLock lock(&mu_);
      if (stop_) return;
    }
    for (int from : {0, 1}) {
      Accept(from, now);
      Deliver(from, now);
    }
    Sleep(now);
  }
}

void SlowLink::Accept(int from, absl::Time now) {
  const bool cut = LoseAllIfCut(now);
  char buffer[kMaxPacketBytes];
  for (int i = 0; i < kMaxPacketsAtOnce; ++i) {
    const ssize_t size = read(devices_[from].get(), buffer, sizeof(buffer));
    if (size <= 0) return;
    const bool taken =
        !cut && lines_[from].Push(std::string(buffer, size), now);
    absl::MutexLock lock(&mu_);
    stats_.packets_cut += cut;
    stats_.packets_dropped += !cut && !taken;
  }
}

void SlowLink::Deliver(int from, absl::Time now) {
  while (std::optional<std::string> packet = lines_[from].Pop(now)) {
    // A device that takes it not has lost it, as networks do.
    const ssize_t size =
        write(devices_[1 - from].get(), packet->data(), packet->size());
    if (size <= 0) continue;
    absl::MutexLock lock(&mu_);
    stats_.bytes_delivered += size;
  }
}

bool SlowLink::LoseAllIfCut(absl::Time now) {
  {
    absl::MutexLock lock(&mu_);
    if (now >= cut_until_) return false;
  }
  for (PacketLine& line : lines_) line.Clear(now);
  return true;
}

void SlowLink::Sleep(absl::Time now) {
  const absl::Time until =
      std::min(lines_[0].NextArrival(), lines_[1].NextArrival());
  const absl::Duration wait =
      std::clamp(until - now, absl::ZeroDuration(), absl::Seconds(1));
  const timespec timeout = absl::ToTimespec(wait);
  pollfd fds[] = {{devices_[0].get(), POLLIN, 0},
                  {devices_[1].get(), POLLIN, 0},
                  {wake_.get(), POLLIN, 0}};
  ppoll(fds, std::size(fds), &timeout, nullptr);
  uint64_t count = 0;
  if (read(wake_.get(), &count, sizeof(count)) < 0) {
    PCHECK(errno == EAGAIN);
  }
}

void SlowLink::Wake() {
  const uint64_t one = 1;
  PCHECK(write(wake_.get(), &one, sizeof(one)) == sizeof(one));
}

}  // namespace baton::test
