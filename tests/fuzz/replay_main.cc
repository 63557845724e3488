// Runs a fuzz target where there is no libFuzzer: over each file that it is
// given (folders: the files in them), and then over altered copies of them. The
// same arguments give the same inputs.
//
//   fuzz_wire [--runs=N] [--seed=N] FILE_OR_FOLDER...
//   fuzz_targets --target=wire ...   in whole builds, which have all in one
//
// When the target crashes, its input is left in ./crash-input.
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "tests/fuzz/fuzz_target.h"

// Of the sanitizers, in builds with them.
extern "C" void __sanitizer_set_death_callback(void (*callback)())
    __attribute__((weak));

namespace baton::fuzz {
namespace {

struct NamedTarget {
  std::string name;
  FuzzTarget target;
};

std::vector<NamedTarget>& Targets() {
  static auto* const targets = new std::vector<NamedTarget>;
  return *targets;
}

}  // namespace

bool AddFuzzTarget(const char* name, FuzzTarget target) {
  Targets().push_back({name, target});
  return true;
}

namespace {

// The one of this name; of a program that has only one, without a name. Null
// when there is none.
FuzzTarget FindTarget(const std::string& name) {
  if (name.empty()) {
    return Targets().size() == 1 ? Targets().front().target : nullptr;
  }
  for (const NamedTarget& target : Targets()) {
    if (target.name == name) return target.target;
  }
  return nullptr;
}

constexpr size_t kMaxInputBytes = 16 << 10;

// The input that is running.
const uint8_t* running = nullptr;
size_t running_size = 0;

// Called when the process is about to die: only what a signal handler may do.
void SaveInput() {
  const int file = open("crash-input", O_WRONLY | O_CREAT | O_TRUNC, 0644);
  if (file < 0) return;
  const ssize_t written = write(file, running, running_size);
  constexpr char kText[] = "the input is in ./crash-input\n";
  if (written == static_cast<ssize_t>(running_size)) {
    static_cast<void>(!write(STDERR_FILENO, kText, sizeof(kText) - 1));
  }
  close(file);
}

void OnSignal(int signal_number) {
  SaveInput();
  signal(signal_number, SIG_DFL);
  raise(signal_number);
}

void Run(FuzzTarget target, const std::string& input) {
  // On the heap, and exactly so long: the sanitizers see reads past its end.
  std::vector<uint8_t> bytes(input.begin(), input.end());
  bytes.shrink_to_fit();
  running = bytes.data();
  running_size = bytes.size();
  target(bytes.data(), bytes.size());
}

// Adds the files below `path`, in the order of their names.
void ReadCorpus(const std::filesystem::path& path,
                std::vector<std::string>* corpus) {
  std::vector<std::filesystem::path> files;
  if (std::filesystem::is_directory(path)) {
    for (const auto& entry :
         std::filesystem::recursive_directory_iterator(path)) {
      if (entry.is_regular_file()) files.push_back(entry.path());
    }
  } else {
    files.push_back(path);
  }
  std::sort(files.begin(), files.end());
  for (const auto& file : files) {
    std::ifstream in(file, std::ios::binary);
    if (!in) {
      std::fprintf(stderr, "cannot read %s\n", file.c_str());
      std::exit(1);
    }
    corpus->emplace_back(std::istreambuf_iterator<char>(in),
                         std::istreambuf_iterator<char>());
  }
}

std::string Alter(const std::vector<std::string>& corpus,
                  std::mt19937_64& random) {
  std::string text = corpus[random() % corpus.size()];
  const int changes = 1 + static_cast<int>(random() % 4);
  for (int i = 0; i < changes; ++i) {
    const size_t at = random() % (text.size() + 1);
    const size_t run = 1 + random() % 16;
    switch (random() % 7) {
      case 0:
        if (at < text.size()) text[at] = static_cast<char>(random());
        break;
      case 1:
        if (at < text.size()) text[at] ^= static_cast<char>(1 << random() % 8);
        break;
      case 2:
        text.erase(at, run);
        break;
      case 3:
        text.insert(at, text.substr(at, run));
        break;
      case 4: {
        static constexpr int64_t kNumbers[] = {
            0, -1, 1, 127, 255, 256, 65536, INT32_MAX, INT64_MAX};
        const int64_t number = kNumbers[random() % std::size(kNumbers)];
        char bytes[sizeof(number)];
        std::memcpy(bytes, &number, sizeof(number));
        text.replace(at, random() % 9, bytes, 1 + random() % sizeof(number));
        break;
      }
      case 5: {
        const std::string& other = corpus[random() % corpus.size()];
        const size_t from = random() % (other.size() + 1);
        text.insert(at, other.substr(from, 1 + random() % 64));
        break;
      }
      case 6:
        text.resize(at);
        break;
    }
  }
  if (text.size() > kMaxInputBytes) text.resize(kMaxInputBytes);
  return text;
}

int Main(int argc, char** argv) {
  uint64_t runs = 0;
  uint64_t seed = 1;
  std::string name;
  std::vector<std::string> corpus;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument.rfind("--runs=", 0) == 0) {
      runs = std::strtoull(argument.c_str() + 7, nullptr, 10);
    } else if (argument.rfind("--seed=", 0) == 0) {
      seed = std::strtoull(argument.c_str() + 7, nullptr, 10);
    } else if (argument.rfind("--target=", 0) == 0) {
      name = argument.substr(9);
    } else if (std::filesystem::exists(argument)) {
      ReadCorpus(argument, &corpus);
    } else {
      std::fprintf(stderr, "there is no %s\n", argument.c_str());
      return 1;
    }
  }
  const FuzzTarget target = FindTarget(name);
  if (target == nullptr) {
    std::fprintf(stderr, "there is no target '%s'\n", name.c_str());
    return 1;
  }
  if (corpus.empty()) {
    std::fprintf(stderr, "give a corpus\n");
    return 1;
  }
  for (const int number : {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL}) {
    // Those that a sanitizer takes stay its own.
    if (__sanitizer_set_death_callback == nullptr || number == SIGABRT) {
      signal(number, OnSignal);
    }
  }
  if (__sanitizer_set_death_callback != nullptr) {
    __sanitizer_set_death_callback(SaveInput);
  }
  for (const std::string& input : corpus) Run(target, input);
  std::mt19937_64 random(seed);
  for (uint64_t i = 0; i < runs; ++i) Run(target, Alter(corpus, random));
  std::printf("%zu files and %llu altered ones\n", corpus.size(),
              static_cast<unsigned long long>(runs));
  return 0;
}

}  // namespace
}  // namespace baton::fuzz

int main(int argc, char** argv) { return baton::fuzz::Main(argc, argv); }
