// The life of one request for tests: what is to be done comes back as text.
// Header only.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include <gtest/gtest.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "scheduling/request_lifecycle.h"

namespace baton::scheduling::request_lifecycle_test {

inline constexpr WorkerId kP{1}, kP2{2}, kD{11}, kD2{12};
inline constexpr AttemptId kA{101}, kB{102}, kC{103};
inline constexpr TokenId kStopToken = 99;
inline const absl::Time kNow = absl::UnixEpoch() + absl::Seconds(1000);

template <typename Id>
uint64_t N(Id id) {
  return static_cast<uint64_t>(id);
}

inline std::string Describe(const LifecycleAction& action) {
  struct Visitor {
    std::string operator()(const SendReserve& a) const {
      return absl::StrCat("reserve ", N(a.attempt), " on ", N(a.decode),
                          a.local_prefill() ? " local" : "");
    }
    std::string operator()(const SendPrefill& a) const {
      return absl::StrCat("prefill ", N(a.attempt), " on ", N(a.prefill));
    }
    std::string operator()(const ForwardGrant& a) const {
      return absl::StrCat("grant ", N(a.attempt), " to ", N(a.prefill));
    }
    std::string operator()(const CancelLeg& a) const {
      return absl::StrCat("cancel ", N(a.attempt), " on ", N(a.worker),
                          a.abandoned ? " abandoned" : "");
    }
    std::string operator()(const DeliverToken& a) const {
      return absl::StrCat("token ", a.index, "=", a.token);
    }
    std::string operator()(const Requeue& a) const {
      return absl::StrCat(
          "requeue +", absl::ToInt64Milliseconds(a.retry_excluded_at - kNow));
    }
    std::string operator()(const AwaitOutcomes&) const { return "await"; }
    std::string operator()(const Finish& a) const {
      return absl::StrCat("finish ", FinishReasonName(a.reason), " ",
                          absl::StatusCodeToString(a.status.code()));
    }
  };
  return std::visit(Visitor(), action);
}

inline std::vector<std::string> Describe(const LifecycleActions& actions) {
  std::vector<std::string> out;
  for (const LifecycleAction& action : actions) out.push_back(Describe(action));
  return out;
}

inline PlacementVerdict On(WorkerId prefill, WorkerId decode) {
  return {.kind = PlacementVerdict::Kind::kPrefillAndDecode,
          .reason = PlacementReason::kLeastLoad,
          .prefill = prefill,
          .decode = decode};
}

inline PlacementVerdict Local(WorkerId decode) {
  return {.kind = PlacementVerdict::Kind::kDecodeOnly,
          .reason = PlacementReason::kNoPrefillWorker,
          .decode = decode};
}

inline const LegOutcome kOk{};
inline const LegOutcome kTorn{.ok = false, .error = "torn", .retryable = true};
inline const LegOutcome kBroken{
    .ok = false, .error = "nan", .retryable = false};

class RequestLifecycleTest : public testing::Test {
 protected:
  explicit RequestLifecycleTest(int32_t max_output_tokens = 8)
      : life_({.max_output_tokens = max_output_tokens,
               .stop_token_ids = {kStopToken}},
              /*max_attempts=*/3, /*seed=*/1) {}
  ~RequestLifecycleTest() override { life_.CheckInvariants(); }

  std::vector<std::string> Place(AttemptId attempt,
                                 const PlacementVerdict& verdict) {
    return Check(life_.Place(attempt, verdict));
  }
  std::vector<std::string> Grant(AttemptId attempt, WorkerId from) {
    return Check(life_.Granted(attempt, from));
  }
  std::vector<std::string> Refuse(AttemptId attempt, WorkerId from,
                                  RefusalKind kind) {
    return Check(life_.Refused(attempt, from, kind, "no room",
                               absl::Milliseconds(70), kNow));
  }
  std::vector<std::string> Token(
      AttemptId attempt, WorkerId from, int32_t index, TokenId token,
      std::optional<FinishReason> finish = std::nullopt) {
    return Check(life_.TokenReported(
        attempt, from, {.index = index, .token = token, .finish = finish},
        kNow));
  }
  std::vector<std::string> End(AttemptId attempt, WorkerId from,
                               const LegOutcome& outcome) {
    return Check(life_.LegEnded(attempt, from, outcome, kNow));
  }
  std::vector<std::string> Lose(WorkerId worker) {
    return Check(life_.WorkerLost(worker, "w", kNow));
  }
  std::vector<std::string> Check(const LifecycleActions& actions) {
    life_.CheckInvariants();
    if (!actions.empty()) {
      if (const auto* finish = std::get_if<Finish>(&actions.back())) {
        final_status_ = finish->status;
      }
    }
    return Describe(actions);
  }

  RequestLifecycle life_;
  absl::Status final_status_;
};

}  // namespace baton::scheduling::request_lifecycle_test
