// Who may include and link whom (docs/architecture.md). The rules are functions
// of a path and a text, and are tested on made-up ones; the last tests apply
// them to the whole tree.
#include <algorithm>
#include <iostream>
#include <map>
#include <set>
#include <string>
#include <utility>
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
#include "tests/source_tree.h"

namespace baton {
namespace {

using source_tree::ReadTree;
using source_tree::SourceFile;
using source_tree::Strings;
using source_tree::TopFolder;

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
      {"batch", {{"common"}, {"grpc", "google/", "ucp/", "uct/", "ucs/"}}},
      // Of the router only its text part, and what an API key is.
      {"cli",
       {{"batch", "client", "load_generator", "workload", "planner",
         "model_tools", "scheduling", "common", "proto", "peer", "router/text",
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

// The tree.

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
