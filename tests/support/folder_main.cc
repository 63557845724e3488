// The main of the test program of a folder, or of several, which whole builds
// make (BATON_UNITY, cmake/BatonBuild.cmake):
//
//   tests_worker --only=tests/worker/a_test.cc,tests/worker/b_test.cc
//
// runs the tests of these files; without --only, or with --gtest_filter, it is
// as any GoogleTest program.
#include <cstdio>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"

namespace baton {

namespace rpc {
// Of common/rpc/grpc_program.h, in programs that have it; null in others.
[[gnu::weak]] bool AwaitGrpcEnd(absl::Duration patience);
}  // namespace rpc

namespace {

bool IsOneOf(absl::string_view file, const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    if (file == name || absl::EndsWith(file, absl::StrCat("/", name))) {
      return true;
    }
  }
  return false;
}

// A filter that passes the tests of `names`; empty when there are none or when
// a test is in a header, where no one's list would have it.
std::string FilterOf(const std::vector<std::string>& names) {
  std::string filter;
  const testing::UnitTest& all = *testing::UnitTest::GetInstance();
  for (int i = 0; i < all.total_test_suite_count(); ++i) {
    const testing::TestSuite& suite = *all.GetTestSuite(i);
    for (int k = 0; k < suite.total_test_count(); ++k) {
      const testing::TestInfo& test = *suite.GetTestInfo(k);
      // GoogleTest's own check that parameters were given has no file.
      if (absl::EndsWith(test.file(), ".h")) {
        std::fprintf(stderr, "%s has tests: only a .cc may\n", test.file());
        return "";
      }
      if (IsOneOf(test.file(), names)) {
        absl::StrAppend(&filter, filter.empty() ? "" : ":", suite.name(), ".",
                        test.name());
      }
    }
  }
  if (filter.empty()) std::fprintf(stderr, "no test is in these files\n");
  return filter;
}

int Main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  for (int i = 1; i < argc; ++i) {
    absl::string_view names = argv[i];
    // A death test runs this program again, with a filter of its own.
    if (!absl::ConsumePrefix(&names, "--only=") ||
        GTEST_FLAG_GET(filter) != "*") {
      continue;
    }
    const std::string filter = FilterOf(absl::StrSplit(names, ','));
    if (filter.empty()) return 1;
    GTEST_FLAG_SET(filter, filter);
  }
  const int status = RUN_ALL_TESTS();
  if (rpc::AwaitGrpcEnd != nullptr) rpc::AwaitGrpcEnd(absl::Seconds(10));
  return status;
}

}  // namespace
}  // namespace baton

int main(int argc, char** argv) { return baton::Main(argc, argv); }
