// The rules of the house that a compiler does not check: who may include whom
// (docs/architecture.md), how long a file may be, and what our code never does.
// The rules are functions of a path and a text, and are tested on made-up
// ones; the last tests apply them to the whole tree.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace baton {
namespace {

using Strings = std::vector<std::string>;

constexpr int kMaxLines = 500;

// What a folder's files may include, and no others. "proto" is what is
// generated from proto/baton/v1; "peer" is its message-only part, peer.proto.
// A folder may always include itself and the standard library.
struct FolderRule {
  std::set<std::string> folders;
  // Headers that start like this are nobody's business here.
  Strings forbidden;
  // The only headers of `common`; none: all.
  std::set<std::string> of_common;
};

const std::map<std::string, FolderRule>& Rules() {
  static const Strings kGrpc = {"grpc", "google/protobuf"};
  static const Strings kData = {"ucp/", "uct/", "ucs/"};
  static const auto* rules = new std::map<std::string, FolderRule>{
      {"common", {{}, {"ucp/", "uct/", "ucs/", "baton/v1/"}}},
      {"proto", {{"peer"}, {"grpc", "ucp/"}}},
      // Pure: no IO, threads, locks, clock reads, messages or devices.
      {"scheduling",
       {{"common"},
        {"grpc",
         "google/",
         "ucp/",
         "prometheus/",
         "nlohmann/",
         "thread",
         "mutex",
         "atomic",
         "condition_variable",
         "shared_mutex",
         "future",
         "semaphore",
         "latch",
         "barrier",
         "stop_token",
         "chrono",
         "ctime",
         "time.h",
         "random",
         "fstream",
         "iostream",
         "filesystem",
         "cstdio",
         "stdio.h",
         "unistd.h",
         "fcntl.h",
         "poll.h",
         "pthread.h",
         "signal.h",
         "csignal",
         "sys/",
         "absl/synchronization/",
         "absl/time/clock.h",
         "absl/random/"},
        {"common/ids.h", "common/log.h", "common/stable_hash.h"}}},
      {"engine",
       {{"scheduling", "common"},
        {"grpc", "google/", "ucp/", "uct/", "ucs/", "prometheus/",
         "common/rpc/"}}},
      {"model_tools",
       {{"engine", "scheduling", "common"},
        {"grpc", "google/", "ucp/", "uct/", "ucs/", "prometheus/",
         "common/rpc/"}}},
      {"kv_transfer", {{"common", "proto", "peer"}, {"grpc", "common/rpc/"}}},
      {"worker",
       {{"engine", "kv_transfer", "scheduling", "common", "proto", "peer"},
        kData}},
      {"prefill_worker",
       {{"worker", "engine", "kv_transfer", "scheduling", "common", "proto",
         "peer"},
        kData}},
      {"decode_worker",
       {{"worker", "engine", "kv_transfer", "scheduling", "common", "proto",
         "peer"},
        kData}},
      {"dual_worker",
       {{"prefill_worker", "decode_worker", "worker", "common", "proto",
         "peer"},
        kData}},
      {"router", {{"scheduling", "common", "proto", "peer"}, kData}},
      {"client",
       {{"common", "proto"}, {"ucp/", "uct/", "ucs/", "common/rpc/"}}},
      // What clients ask for, for load and for plans: no IO but traces.
      {"workload",
       {{"common"}, {"grpc", "google/protobuf", "ucp/", "uct/", "ucs/"}}},
      // Clusters under a virtual clock: pure, but for profiles in files.
      {"planner",
       {{"scheduling", "workload", "common"},
        {"grpc", "google/", "ucp/", "uct/", "ucs/", "prometheus/",
         "common/rpc/"}}},
      {"load_generator", {{"client", "common", "proto", "workload"}, kData}},
      // Of the router only its text part, and what an API key is.
      {"cli",
       {{"client", "load_generator", "workload", "planner", "model_tools",
         "scheduling", "common", "proto", "peer", "router/text",
         "router/access"},
        kData}},
  };
  return *rules;
}

// Folders that hold no part of the product.
const std::set<std::string>& OtherFolders() {
  static const auto* folders =
      new std::set<std::string>{"build",  "cmake", "docs",  "examples",
                                "models", "tests", "tools", "deploy"};
  return *folders;
}

std::string TopFolder(absl::string_view path) {
  const size_t slash = path.find('/');
  return slash == absl::string_view::npos ? ""
                                          : std::string(path.substr(0, slash));
}

// "engine/cpu/x.h" of `#include "engine/cpu/x.h"`; empty when the line is no
// include.
absl::string_view IncludedHeader(absl::string_view line) {
  line = absl::StripAsciiWhitespace(line);
  if (!absl::ConsumePrefix(&line, "#")) return "";
  line = absl::StripLeadingAsciiWhitespace(line);
  if (!absl::ConsumePrefix(&line, "include")) return "";
  line = absl::StripLeadingAsciiWhitespace(line);
  if (line.empty() || (line[0] != '"' && line[0] != '<')) return "";
  const size_t end = line.find(line[0] == '"' ? '"' : '>', 1);
  return end == absl::string_view::npos ? "" : line.substr(1, end - 1);
}

// Which of our folders a header belongs to; empty for the rest of the world.
std::string FolderOfHeader(absl::string_view header) {
  if (absl::StartsWith(header, "baton/v1/peer.pb")) return "peer";
  if (absl::StartsWith(header, "baton/v1/")) return "proto";
  if (absl::StartsWith(header, "router/text/")) return "router/text";
  if (header == "router/access/key_file.h") return "router/access";
  const std::string top = TopFolder(header);
  return Rules().count(top) > 0 || OtherFolders().count(top) > 0 ? top : "";
}

bool MayInclude(const std::string& folder, const std::string& target) {
  const std::set<std::string>& allowed = Rules().at(folder).folders;
  return target.empty() || target == folder || allowed.count(target) > 0 ||
         (absl::StartsWith(target, "router/") && folder == "router");
}

// Violations of the layering in one source file.
Strings CheckIncludes(const std::string& path, const std::string& text) {
  const std::string folder = TopFolder(path);
  if (OtherFolders().count(folder) > 0) return {};
  if (Rules().count(folder) == 0) {
    return {absl::StrCat(path, ": folder '", folder,
                         "' is not in the table of tests/layering_test.cc")};
  }
  Strings found;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    const absl::string_view header = IncludedHeader(line);
    if (header.empty()) continue;
    const Strings& forbidden = Rules().at(folder).forbidden;
    const bool is_forbidden = std::any_of(
        forbidden.begin(), forbidden.end(), [&](const std::string& prefix) {
          return absl::StartsWith(header, prefix);
        });
    const std::set<std::string>& of_common = Rules().at(folder).of_common;
    const bool is_others = absl::StartsWith(header, "common/") &&
                           !of_common.empty() &&
                           of_common.count(std::string(header)) == 0;
    if (is_forbidden || is_others ||
        !MayInclude(folder, FolderOfHeader(header))) {
      found.push_back(
          absl::StrCat(path, ": ", folder, " may not include ", header));
    }
  }
  return found;
}

// Violations of the layering in what a CMakeLists.txt links: baton::common_rpc
// belongs to common, baton::peer_proto and baton::proto to proto.
Strings CheckLinks(const std::string& path, const std::string& text) {
  const std::string folder = TopFolder(path);
  if (Rules().count(folder) == 0) return {};
  Strings found;
  const std::string kPrefix = "baton::";
  for (size_t at = text.find(kPrefix); at != std::string::npos;
       at = text.find(kPrefix, at + 1)) {
    const size_t begin = at + kPrefix.size();
    const size_t end =
        text.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_", begin);
    const std::string target = text.substr(begin, end - begin);
    if (target.empty()) continue;  // baton::${NAME}
    std::string owner;
    for (const auto& [candidate, rule] : Rules()) {
      if (target == candidate || absl::StartsWith(target, candidate + "_")) {
        owner = candidate;
      }
    }
    if (target == "peer_proto") owner = "peer";
    if (target == "router_text") owner = "router/text";
    if (target == "router_access_keys") owner = "router/access";
    if (owner.empty() || !MayInclude(folder, owner)) {
      found.push_back(
          absl::StrCat(path, ": ", folder, " may not link baton::", target));
    }
  }
  return found;
}

// What is written in code: without // comments.
std::string WithoutComments(const std::string& text) {
  Strings lines;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    const size_t comment = line.find("//");
    // "http://" is no comment.
    const bool is_url = comment != absl::string_view::npos && comment > 0 &&
                        line[comment - 1] == ':';
    lines.emplace_back(is_url ? line : line.substr(0, comment));
  }
  return absl::StrJoin(lines, "\n");
}

// Whether `word` stands in `text` and is not the end of a longer name.
bool HasWord(const std::string& text, const std::string& word) {
  for (size_t at = text.find(word); at != std::string::npos;
       at = text.find(word, at + 1)) {
    const bool longer =
        at > 0 && (absl::ascii_isalnum(text[at - 1]) || text[at - 1] == '_');
    if (!longer) return true;
  }
  return false;
}

const Strings& SleepWords() {
  static const auto* words =
      new Strings{"sleep_for(", "sleep_until(", "SleepFor(",
                  "sleep(",     "usleep(",      "nanosleep("};
  return *words;
}
const Strings& PrintWords() {
  static const auto* words =
      new Strings{"std::cout", "std::cerr", "printf(", "puts("};
  return *words;
}
const Strings& UnfinishedWords() {
  static const auto* words = new Strings{"TODO", "FIXME"};
  return *words;
}

// Violations of the other rules in one source file.
Strings CheckSource(const std::string& path, const std::string& text) {
  const std::string folder = TopFolder(path);
  const bool is_header = absl::EndsWith(path, ".h");
  const std::string code = WithoutComments(text);
  Strings found;
  const auto add = [&](absl::string_view what) {
    found.push_back(absl::StrCat(path, ": ", what));
  };
  const auto lines = std::count(text.begin(), text.end(), '\n');
  if (folder != "tests" && lines > kMaxLines) {
    add(absl::StrCat("has ", lines, " lines; ", kMaxLines, " are enough"));
  }
  for (const std::string& word : SleepWords()) {
    if (HasWord(code, word)) add(absl::StrCat("waits by ", word, ")"));
  }
  if (folder != "tests" && folder != "cli" && folder != "examples") {
    for (const std::string& word : PrintWords()) {
      if (HasWord(code, word)) add(absl::StrCat("prints by ", word));
    }
  }
  for (const std::string& word : UnfinishedWords()) {
    if (HasWord(text, word)) add(absl::StrCat("is unfinished: ", word));
  }
  if (HasWord(code, "using namespace")) add("has a using directive");
  if (is_header && !absl::StrContains(text, "\n#pragma once\n")) {
    add("has no #pragma once");
  }
  if (is_header && !absl::StartsWith(text, "//")) {
    add("does not open with what it is");
  }
  return found;
}

TEST(IncludeRulesTest, AllowsWhatTheTableSays) {
  EXPECT_THAT(CheckIncludes("engine/cpu/x.cc",
                            "#include \"engine/cpu/x.h\"\n"
                            "#include <vector>\n"
                            "#include \"scheduling/step_plan.h\"\n"
                            "#include \"absl/strings/str_cat.h\"\n"),
              testing::IsEmpty());
  EXPECT_THAT(
      CheckIncludes("cli/x.cc", "#include \"router/text/tokenizer.h\"\n"),
      testing::IsEmpty());
  EXPECT_THAT(CheckIncludes("tests/x.cc",
                            "#include \"router/x.h\"\n"
                            "#include \"engine/engine.h\"\n"),
              testing::IsEmpty());
  EXPECT_THAT(
      CheckIncludes("kv_transfer/x.h", "#include \"baton/v1/peer.pb.h\"\n"),
      testing::IsEmpty());
}

TEST(IncludeRulesTest, FindsEachKindOfViolation) {
  const std::vector<std::pair<std::string, std::string>> bad = {
      {"router/x.cc", "\"engine/engine.h\""},
      {"router/text/x.cc", "\"kv_transfer/transport.h\""},
      {"prefill_worker/x.cc", "\"decode_worker/decode_loop.h\""},
      {"decode_worker/x.cc", "\"prefill_worker/pairings.h\""},
      {"worker/x.h", "\"router/worker_link.h\""},
      {"worker/x.h", "\"prefill_worker/pairings.h\""},
      {"engine/x.h", "\"kv_transfer/transport.h\""},
      {"engine/x.h", "<grpcpp/grpcpp.h>"},
      {"scheduling/x.h", "\"baton/v1/worker.pb.h\""},
      {"scheduling/x.h", "<mutex>"},
      {"scheduling/x.h", "\"absl/synchronization/mutex.h\""},
      {"scheduling/x.h", "\"common/clock.h\""},
      {"scheduling/x.h", "\"common/mapped_file.h\""},
      {"scheduling/x.h", "<future>"},
      {"scheduling/x.h", "\"engine/engine.h\""},
      {"kv_transfer/x.cc", "\"engine/kv_layout.h\""},
      {"kv_transfer/x.cc", "<grpcpp/grpcpp.h>"},
      {"common/x.h", "\"scheduling/request.h\""},
      {"cli/x.cc", "\"router/worker_link.h\""},
      {"cli/x.cc", "\"router/access/access_control.h\""},
      {"cli/x.cc", "\"engine/engine.h\""},
      {"planner/x.cc", "\"load_generator/summary.h\""},
      {"model_tools/x.cc", "\"router/text/tokenizer.h\""},
      {"engine/x.h", "\"model_tools/machine.h\""},
      {"client/x.cc", "\"common/rpc/grpc_setup.h\""},
      {"client/x.cc", "\"cli/host_port.h\""},
      {"router/x.cc", "\"client/client.h\""},
      {"router/x.cc", "<ucp/api/ucp.h>"},
      {"common/x.h", "\"tests/support/tiny_model.h\""},
  };
  for (const auto& [path, header] : bad) {
    EXPECT_THAT(CheckIncludes(path, "#pragma once\n#include " + header + "\n"),
                testing::SizeIs(1))
        << path << " " << header;
  }
  EXPECT_THAT(CheckIncludes("router/x.cc", "  #  include \"engine/engine.h\""),
              testing::SizeIs(1));
  EXPECT_THAT(CheckIncludes("gadgets/x.cc", "#include <vector>\n"),
              testing::ElementsAre(testing::HasSubstr("not in the table")));
}

TEST(LinkRulesTest, FollowsTheSameTable) {
  EXPECT_THAT(CheckLinks("router/CMakeLists.txt",
                         "baton_library(NAME router DEPS baton::common_rpc "
                         "baton::proto baton::scheduling baton::router_text)"),
              testing::IsEmpty());
  EXPECT_THAT(CheckLinks("router/CMakeLists.txt", "DEPS baton::engine_factory"),
              testing::SizeIs(1));
  EXPECT_THAT(CheckLinks("kv_transfer/CMakeLists.txt",
                         "DEPS baton::engine baton::peer_proto"),
              testing::SizeIs(1));
  EXPECT_THAT(
      CheckLinks("cli/CMakeLists.txt", "DEPS baton::router baton::router_text"),
      testing::SizeIs(1));
  EXPECT_THAT(CheckLinks("scheduling/CMakeLists.txt", "DEPS baton::gadgets"),
              testing::SizeIs(1));
}

TEST(SourceRulesTest, FindsEachKindOfViolation) {
  const std::string good = "// A thing.\n#pragma once\n";
  EXPECT_THAT(CheckSource("engine/x.h", good), testing::IsEmpty());
  EXPECT_THAT(CheckSource("engine/x.h", "#pragma once\n"), testing::SizeIs(2));
  EXPECT_THAT(CheckSource("engine/x.h", "// A thing.\n"), testing::SizeIs(1));
  const std::string long_file(kMaxLines + 1, '\n');
  EXPECT_THAT(CheckSource("engine/x.cc", long_file), testing::SizeIs(1));
  EXPECT_THAT(CheckSource("tests/x.cc", long_file), testing::IsEmpty());
  for (const std::string& word : SleepWords()) {
    EXPECT_THAT(CheckSource("tests/x.cc", "  absl::" + word + "1);\n"),
                testing::SizeIs(1))
        << word;
    EXPECT_THAT(CheckSource("tests/x.cc", "// " + word + "1)\n"),
                testing::IsEmpty());
    EXPECT_THAT(CheckSource("tests/x.cc", "my_" + word + "1);\n"),
                testing::IsEmpty());
  }
  for (const std::string& word : PrintWords()) {
    EXPECT_THAT(CheckSource("engine/x.cc", "  " + word + " x;\n"),
                testing::SizeIs(1))
        << word;
    EXPECT_THAT(CheckSource("cli/x.cc", "  " + word + " x;\n"),
                testing::IsEmpty());
  }
  // A program says on stderr why it did not start.
  EXPECT_THAT(CheckSource("engine/x.cc", "  std::fprintf(stderr, x);\n"),
              testing::IsEmpty());
  for (const std::string& word : UnfinishedWords()) {
    EXPECT_THAT(CheckSource("engine/x.cc", "// " + word + ": later\n"),
                testing::SizeIs(1));
  }
  EXPECT_THAT(CheckSource("engine/x.cc", "using namespace std;\n"),
              testing::SizeIs(1));
}

// The tree.

struct SourceFile {
  std::string path;  // from the root
  std::string text;
};

// All source files and CMakeLists.txt of the tree, sorted.
std::vector<SourceFile> ReadTree() {
  namespace fs = std::filesystem;
  const fs::path root = BATON_SOURCE_DIR;
  std::vector<SourceFile> files;
  for (auto it = fs::recursive_directory_iterator(root);
       it != fs::recursive_directory_iterator(); ++it) {
    const fs::path& path = it->path();
    const std::string name = path.filename().string();
    if (it->is_directory()) {
      const bool is_build =
          fs::exists(path / "CMakeCache.txt") || path == root / "build";
      if (name[0] == '.' || is_build) it.disable_recursion_pending();
      continue;
    }
    const std::string extension = path.extension().string();
    static const std::set<std::string> kExtensions = {".h", ".inl", ".cc",
                                                      ".cu", ".cuh"};
    if (kExtensions.count(extension) == 0 && name != "CMakeLists.txt") {
      continue;
    }
    std::ifstream in(path, std::ios::binary);
    files.push_back({path.lexically_relative(root).generic_string(),
                     std::string(std::istreambuf_iterator<char>(in), {})});
  }
  std::sort(files.begin(), files.end(),
            [](const auto& a, const auto& b) { return a.path < b.path; });
  return files;
}

TEST(TreeTest, KeepsTheLayers) {
  const std::vector<SourceFile> files = ReadTree();
  ASSERT_GT(files.size(), 50u) << "the tree was not found";
  Strings found;
  for (const SourceFile& file : files) {
    const Strings here = absl::EndsWith(file.path, "CMakeLists.txt")
                             ? CheckLinks(file.path, file.text)
                             : CheckIncludes(file.path, file.text);
    found.insert(found.end(), here.begin(), here.end());
  }
  EXPECT_TRUE(found.empty()) << absl::StrJoin(found, "\n");
}

TEST(TreeTest, KeepsTheOtherRules) {
  Strings found;
  for (const SourceFile& file : ReadTree()) {
    if (absl::EndsWith(file.path, "CMakeLists.txt")) continue;
    // Holds what it looks for.
    if (file.path == "tests/layering_test.cc") continue;
    const Strings here = CheckSource(file.path, file.text);
    found.insert(found.end(), here.begin(), here.end());
  }
  EXPECT_TRUE(found.empty()) << absl::StrJoin(found, "\n");
}

// For information: main.cc and files that others' tests cover have none.
TEST(TreeTest, ListsSourcesWithoutATestOfTheirOwn) {
  std::set<std::string> tests;
  const std::vector<SourceFile> files = ReadTree();
  for (const SourceFile& file : files) {
    if (TopFolder(file.path) == "tests") tests.insert(file.path);
  }
  Strings without;
  for (const SourceFile& file : files) {
    if (Rules().count(TopFolder(file.path)) == 0) continue;
    absl::string_view stem = file.path;
    if (!absl::ConsumeSuffix(&stem, ".cc")) continue;
    if (tests.count(absl::StrCat("tests/", stem, "_test.cc")) == 0) {
      without.push_back(file.path);
    }
  }
  std::cout << without.size() << " sources have no test of their own: "
            << absl::StrJoin(without, " ") << "\n";
}

}  // namespace
}  // namespace baton
