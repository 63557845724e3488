// A waiting line, and the requests that its tests put into it. Header only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "absl/time/time.h"
#include "scheduling/waiting_line.h"

namespace baton::scheduling::waiting_line_test {

using Verdict = WaitingLine::Admission::Verdict;

inline absl::Time At(double seconds) {
  return absl::UnixEpoch() + absl::Seconds(seconds);
}

class WaitingLineTest : public testing::Test {
 protected:
  // Of 100 tokens; the keys count up.
  static WaitingRequest Request(uint64_t key, const std::string& tenant = "") {
    return {.key = key, .tenant = tenant, .tokens = 100};
  }
  static WaitingRequest Batch(uint64_t key) {
    WaitingRequest request = Request(key);
    request.request_class = RequestClass::kBatch;
    return request;
  }
  static WaitingRequest By(uint64_t key, double start_by) {
    WaitingRequest request = Request(key);
    request.start_by = At(start_by);
    return request;
  }
  static WaitingRequest Urgent(uint64_t key, int32_t priority) {
    WaitingRequest request = Request(key);
    request.priority = priority;
    return request;
  }

  void Make(WaitingLine::Options options) { line_.emplace(options); }
  void Join(const WaitingRequest& request, double at = 0) {
    const auto admission = line_->Admit(request, At(at));
    EXPECT_EQ(admission.verdict, Verdict::kJoined) << request.key;
    EXPECT_EQ(admission.evicted, std::nullopt) << request.key;
    line_->CheckInvariants();
  }
  // Places `most` at that time, and returns them in their order.
  std::vector<uint64_t> Place(size_t most = 1000, double at = 0) {
    std::vector<uint64_t> placed;
    while (placed.size() < most) {
      const std::optional<uint64_t> next = line_->Next(At(at));
      if (!next.has_value()) break;
      line_->Place(*next, At(at));
      line_->CheckInvariants();
      placed.push_back(*next);
    }
    line_->EndTurn(At(at));
    return placed;
  }
  // Makes the line know that 100 tokens leave each second: the line is empty
  // then, at `at` + 2.
  void Teach(uint64_t key, double at) {
    Join(Request(key), at);
    Join(Request(key + 1), at);
    line_->EndTurn(At(at));
    EXPECT_EQ(Place(1, at + 1).size(), 1u);
    EXPECT_EQ(Place(1, at + 2).size(), 1u);
  }

  std::optional<WaitingLine> line_{WaitingLine::Options()};
};

}  // namespace baton::scheduling::waiting_line_test
