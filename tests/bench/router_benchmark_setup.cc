#include "tests/bench/router_benchmark_setup.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "common/json.h"
#include "common/log.h"
#include "common/process/proc_file.h"

namespace baton::bench {
namespace {

timespec ToTimespec(int64_t ns) {
  timespec time;
  time.tv_sec = ns / 1'000'000'000;
  time.tv_nsec = ns % 1'000'000'000;
  return time;
}

double Ticks(absl::string_view field) {
  int64_t ticks = 0;
  CHECK(absl::SimpleAtoi(field, &ticks)) << field;
  static const auto per_second = static_cast<double>(sysconf(_SC_CLK_TCK));
  return static_cast<double>(ticks) / per_second;
}

// utime and stime of /proc/PID/stat.
double ProcessSeconds(pid_t process) {
  const std::string stat =
      process::ReadProcFile(absl::StrCat("/proc/", process, "/stat"));
  // The name, which may hold anything, ends with the last bracket; the state
  // that follows is field 3.
  const size_t name_end = stat.rfind(')');
  CHECK(name_end != std::string::npos) << "no process " << process;
  const std::vector<absl::string_view> fields = absl::StrSplit(
      absl::string_view(stat).substr(name_end + 1), ' ', absl::SkipEmpty());
  CHECK_GT(fields.size(), 13u);
  return Ticks(fields[11]) + Ticks(fields[12]);
}

// Not idle, of all CPUs.
double MachineSeconds() {
  const std::string stat = process::ReadProcFile("/proc/stat");
  const std::vector<absl::string_view> fields =
      absl::StrSplit(absl::string_view(stat).substr(0, stat.find('\n')), ' ',
                     absl::SkipEmpty());
  CHECK_GT(fields.size(), 8u);
  double busy = 0;
  for (size_t i = 1; i <= 8; ++i) {
    if (i != 4 && i != 5) busy += Ticks(fields[i]);  // idle, iowait
  }
  return busy;
}

double Seconds(const timeval& time) {
  return static_cast<double>(time.tv_sec) +
         static_cast<double>(time.tv_usec) * 1e-6;
}

}  // namespace

int64_t NowNs() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

void SleepUntil(int64_t ns) {
  const timespec until = ToTimespec(ns);
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, nullptr) ==
         EINTR) {
  }
}

void SleepSeconds(double seconds) {
  SleepUntil(NowNs() + static_cast<int64_t>(seconds * 1e9));
}

void KeepToCpu(int cpu) {
  static const int num_cpus = static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(std::min(cpu, num_cpus - 1), &one);
  PCHECK(sched_setaffinity(0, sizeof(one), &one) == 0);
}

void RaiseFileLimit() {
  rlimit limit;
  PCHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
  limit.rlim_cur = limit.rlim_max;  // children have it too
  PCHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
  LOG_IF(WARNING, limit.rlim_cur < TokenBoard::kMaxStreams)
      << "ulimit -n is " << limit.rlim_cur
      << ": with more streams than that, the benchmark ends";
}

ScratchFolder::ScratchFolder()
    : path_(std::filesystem::temp_directory_path() /
            "router_benchmark-XXXXXX") {
  PCHECK(mkdtemp(path_.data()) != nullptr) << path_;
}

ScratchFolder::~ScratchFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

void CopyModelDir(const std::string& from, const std::string& to,
                  int max_context) {
  namespace fs = std::filesystem;
  fs::create_directory(to);
  for (const fs::directory_entry& file : fs::directory_iterator(from)) {
    const fs::path name = file.path().filename();
    if (name == "config.json") continue;
    fs::create_symlink(fs::absolute(file.path()), to / name);
  }
  std::ifstream in(from + "/config.json");
  nlohmann::json config = nlohmann::json::parse(in, nullptr, false);
  CHECK(config.is_object()) << from << "/config.json";
  config["max_position_embeddings"] = max_context;
  std::ofstream out(to + "/config.json");
  out << config.dump(1);
  CHECK(out.flush().good()) << to;
}

std::string StreamName(int stream) { return absl::StrCat("s", stream); }

int StreamOfName(const std::string& name) {
  int stream = -1;
  if (name.empty() || name[0] != 's' ||
      !absl::SimpleAtoi(name.substr(1), &stream) || stream < 0 ||
      stream >= TokenBoard::kMaxStreams) {
    return -1;
  }
  return stream;
}

TokenBoard::TokenBoard()
    : memory_(static_cast<Memory*>(mmap(nullptr, sizeof(Memory),
                                        PROT_READ | PROT_WRITE,
                                        MAP_SHARED | MAP_ANONYMOUS, -1, 0))) {
  PCHECK(memory_ != MAP_FAILED);
}

TokenBoard::~TokenBoard() { munmap(memory_, sizeof(Memory)); }

void TokenBoard::Sent(int stream, uint32_t index, int64_t ns) {
  memory_->sent[index % kSlots][stream].store(ns, std::memory_order_relaxed);
  memory_->streams[stream].num_sent.store(index + 1, std::memory_order_relaxed);
}

int64_t TokenBoard::SentAt(int stream, uint32_t index) const {
  const uint32_t num_sent =
      memory_->streams[stream].num_sent.load(std::memory_order_relaxed);
  if (num_sent > index + kSlots) return 0;
  return memory_->sent[index % kSlots][stream].load(std::memory_order_relaxed);
}

void TokenBoard::Reserved(int stream, int64_t ns) {
  memory_->streams[stream].reserved = ns;
}
int64_t TokenBoard::ReservedAt(int stream) const {
  return memory_->streams[stream].reserved;
}
void TokenBoard::Left(int stream, int64_t ns) {
  memory_->streams[stream].left = ns;
}
int64_t TokenBoard::LeftAt(int stream) const {
  return memory_->streams[stream].left;
}
void TokenBoard::Cancelled(int stream, int64_t ns) {
  memory_->streams[stream].cancelled = ns;
}
int64_t TokenBoard::CancelledAt(int stream) const {
  return memory_->streams[stream].cancelled;
}

void TokenBoard::Forget(int stream) {
  Stream& known = memory_->streams[stream];
  known.reserved = known.left = known.cancelled = 0;
  known.num_sent = 0;
}

double Window::Counts::Quantile(double q) {
  if (micros.empty()) return 0;
  if (!sorted) std::sort(micros.begin(), micros.end());
  sorted = true;
  const auto at = static_cast<size_t>(q * static_cast<double>(micros.size()));
  return micros[std::min(at, micros.size() - 1)] * 1e-3;
}

void Window::Open() {
  absl::MutexLock lock(&mu_);
  counts_ = Counts();
  counts_.micros.reserve(1 << 20);
  bytes_ = 0;
  opened_at_ = NowNs();
  open_ = true;
}

Window::Counts Window::Close() {
  absl::MutexLock lock(&mu_);
  open_ = false;
  counts_.seconds = static_cast<double>(NowNs() - opened_at_) * 1e-9;
  counts_.bytes = bytes_;
  return std::move(counts_);
}

void Window::Take(int stream, uint32_t index, int count, int64_t now) {
  if (!open_.load(std::memory_order_relaxed)) return;
  absl::MutexLock lock(&mu_);
  if (!open_) return;
  ++counts_.events;
  counts_.tokens += count;
  for (int i = 0; i < count; ++i) {
    const int64_t sent = board_->SentAt(stream, index + i);
    const int64_t micros =
        sent == 0 ? std::numeric_limits<int32_t>::max() : (now - sent) / 1000;
    counts_.micros.push_back(static_cast<int32_t>(
        std::min<int64_t>(micros, std::numeric_limits<int32_t>::max())));
  }
}

CpuTimes ReadCpuTimes(pid_t process) {
  CpuTimes times;
  times.wall = static_cast<double>(NowNs()) * 1e-9;
  times.process = ProcessSeconds(process);
  rusage own;
  PCHECK(getrusage(RUSAGE_SELF, &own) == 0);
  times.own = Seconds(own.ru_utime) + Seconds(own.ru_stime);
  times.machine = MachineSeconds();
  times.num_cpus = static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
  return times;
}

CpuShares Between(const CpuTimes& begin, const CpuTimes& end) {
  const double wall = end.wall - begin.wall;
  CpuShares shares;
  shares.process = (end.process - begin.process) / wall;
  shares.own = (end.own - begin.own) / wall;
  const double machine = (end.machine - begin.machine) / wall;
  shares.others =
      std::max(0.0, machine - shares.process - shares.own) / begin.num_cpus;
  return shares;
}

int64_t ResidentBytes(pid_t process) {
  const std::string status =
      process::ReadProcFile(absl::StrCat("/proc/", process, "/status"));
  constexpr absl::string_view kField = "VmRSS:";
  const size_t at = status.find(std::string(kField));
  CHECK(at != std::string::npos) << "no process " << process;
  return 1024 * strtoll(status.c_str() + at + kField.size(), nullptr, 10);
}

double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

}  // namespace baton::bench
