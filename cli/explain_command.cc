// `baton explain`: why a request was placed where, and where its time went.
#include <cstdio>
#include <memory>
#include <string>

#include <google/protobuf/util/json_util.h>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "cli/command.h"
#include "cli/explain_report.h"
#include "cli/host_port.h"
#include "cli/router_connection.h"
#include "common/status_macros.h"

namespace baton::cli {
namespace {

constexpr absl::Duration kExplainTimeout = absl::Seconds(5);

struct ExplainFlags {
  RouterFlags router;
  std::string request_id;
  bool json = false;
};

absl::StatusOr<v1::ExplainRequestResponse> AskWhy(const ExplainFlags& flags) {
  BATON_ASSIGN_OR_RETURN(const std::unique_ptr<client::Client> router,
                         ConnectToRouter(flags.router, kExplainTimeout));
  return router->Explain(flags.request_id, kExplainTimeout);
}

int RunExplain(const ExplainFlags& flags) {
  const absl::StatusOr<v1::ExplainRequestResponse> request = AskWhy(flags);
  if (!request.ok()) {
    std::fprintf(stderr, "baton explain: %s\n",
                 std::string(request.status().message()).c_str());
    return kExitFailed;
  }
  if (!flags.json) {
    std::printf("%s", FormatExplanation(*request).c_str());
    return kExitOk;
  }
  google::protobuf::util::JsonPrintOptions format;
  format.preserve_proto_field_names = true;
  format.always_print_primitive_fields = true;
  std::string text;
  if (!google::protobuf::util::MessageToJsonString(*request, &text, format)
           .ok()) {
    std::fprintf(stderr, "baton explain: the answer is no JSON\n");
    return kExitFailed;
  }
  std::printf("%s\n", text.c_str());
  return kExitOk;
}

}  // namespace

void AddExplainCommand(CLI::App* app, const std::string& program,
                       Command* chosen) {
  auto flags = std::make_shared<ExplainFlags>();
  CLI::App* explain = app->add_subcommand(
      "explain",
      "Why a request was placed where it was, and where its time went");
  explain
      ->add_option("request", flags->request_id,
                   "Its id: what the client named it, or the router did; the "
                   "answer and the router's log have it")
      ->required()
      ->type_name("ID");
  explain
      ->add_option(
          "--router,--address", flags->router.address,
          absl::StrCat("HOST:PORT of the router; default ", kDefaultAddress))
      ->check([](const std::string& text) {
        return std::string(ParseHostPort(text).status().message());
      });
  explain->add_flag("--json", flags->json, "As one line of JSON");
  AddCredentialFlags(explain, &flags->router);
  explain->footer(absl::StrCat(
      "The router remembers the requests that it has and some thousands that "
      "ended; of several of\none id, the newest is meant.\nExample:\n  ",
      program, " generate \"Once upon a time\" --request-id story-1\n  ",
      program, " explain story-1\n"));
  explain->callback(
      [flags, chosen] { *chosen = [flags] { return RunExplain(*flags); }; });
}

}  // namespace baton::cli
