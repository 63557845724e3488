// `baton plan profile`: what the workers of a cluster measured of themselves,
// as a file for `baton plan --profile`.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "cli/command.h"
#include "cli/measured_profile.h"
#include "cli/router_connection.h"
#include "cli/stop_signals.h"
#include "common/process/process.h"
#include "common/status_macros.h"
#include "common/output_file.h"

namespace baton::cli {
namespace {

constexpr absl::Duration kAnswerTimeout = absl::Seconds(5);
// Workers report to the router each 100 ms.
constexpr absl::Duration kAskInterval = absl::Milliseconds(200);
constexpr double kMostSeconds = 600;

struct PlanProfileFlags {
  RouterFlags router;
  std::string file;
  double seconds = 0;
};

// The cluster as it is now, and each kAskInterval until `seconds` are over or
// SIGINT or SIGTERM comes.
absl::StatusOr<std::vector<v1::GetClusterResponse>> Watch(
    client::Client* router, double seconds) {
  absl::Notification stopped;
  const StopSignalWatch signals([&stopped](int) { stopped.Notify(); });
  std::vector<v1::GetClusterResponse> times;
  const absl::Time end = absl::Now() + absl::Seconds(seconds);
  do {
    BATON_ASSIGN_OR_RETURN(times.emplace_back(),
                           router->GetCluster(kAnswerTimeout));
  } while (!stopped.WaitForNotificationWithTimeout(
               std::min(kAskInterval, end - absl::Now())) &&
           absl::Now() < end);
  return times;
}

absl::Status WriteProfile(const PlanProfileFlags& flags) {
  process::SetUpSignals(/*die_with_parent=*/false);
  BATON_ASSIGN_OR_RETURN(const std::unique_ptr<client::Client> router,
                         ConnectToRouter(flags.router, kAnswerTimeout));
  BATON_ASSIGN_OR_RETURN(const std::vector<v1::GetClusterResponse> times,
                         Watch(router.get(), flags.seconds));
  BATON_ASSIGN_OR_RETURN(const planner::ClusterProfile profile,
                         MeasuredProfile(times));
  const std::string json = absl::StrCat(ProfileJson(profile).dump(1), "\n");
  if (flags.file == "-") {
    std::fputs(json.c_str(), stdout);
    return absl::OkStatus();
  }
  BATON_RETURN_IF_ERROR(WriteTextFile(flags.file, json));
  std::printf("%s: %s\n", flags.file.c_str(), profile.source.c_str());
  return absl::OkStatus();
}

int RunPlanProfile(const PlanProfileFlags& flags) {
  const absl::Status status = WriteProfile(flags);
  if (status.ok()) return kExitOk;
  std::fprintf(stderr, "baton plan profile: %s\n",
               std::string(status.message()).c_str());
  return kExitFailed;
}

}  // namespace

void AddPlanProfileCommand(CLI::App* plan, const std::string& program,
                           Command* chosen) {
  auto flags = std::make_shared<PlanProfileFlags>();
  CLI::App* profile = plan->add_subcommand(
      "profile", "Write what the workers of a cluster measured of themselves");
  profile
      ->add_option("FILE", flags->file, "To be written; - for standard output")
      ->required();
  profile->add_option("--router", flags->router.address, "Its gRPC, HOST:PORT")
      ->capture_default_str();
  profile
      ->add_option("--seconds", flags->seconds,
                   "Watch so long, or until Ctrl-C, and write the mean: while "
                   "the load is on that shall be planned for")
      ->check(CLI::Range(0.0, kMostSeconds))
      ->capture_default_str();
  AddCredentialFlags(profile, &flags->router);
  profile->footer(absl::StrCat("Example, under some load:\n  ", program,
                               " plan profile --seconds 10 cluster.json\n"));
  profile->callback([flags, chosen] {
    *chosen = [flags] { return RunPlanProfile(*flags); };
  });
}

}  // namespace baton::cli
