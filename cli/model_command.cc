// `baton model`: what the router serves.
#include <cstdio>
#include <memory>
#include <string>

#include <google/protobuf/util/json_util.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cli/command.h"
#include "cli/router_connection.h"
#include "common/status_macros.h"

namespace baton::cli {
namespace {

constexpr absl::Duration kModelTimeout = absl::Seconds(5);

struct ModelOptions {
  RouterFlags router;
  bool json = false;
};

absl::StatusOr<v1::GetModelResponse> AskModel(const ModelOptions& options) {
  BATON_ASSIGN_OR_RETURN(const std::unique_ptr<client::Client> router,
                         ConnectToRouter(options.router, kModelTimeout));
  return router->GetModel(kModelTimeout);
}

int RunModel(const ModelOptions& options) {
  const absl::StatusOr<v1::GetModelResponse> model = AskModel(options);
  if (!model.ok()) {
    std::fprintf(stderr, "baton model: %s\n",
                 std::string(model.status().message()).c_str());
    return kExitFailed;
  }
  if (options.json) {
    google::protobuf::util::JsonPrintOptions format;
    format.preserve_proto_field_names = true;
    format.always_print_primitive_fields = true;
    std::string line;
    if (!google::protobuf::util::MessageToJsonString(*model, &line, format)
             .ok()) {
      return kExitFailed;
    }
    std::printf("%s\n", line.c_str());
    return kExitOk;
  }
  std::printf(
      "name             %s\narchitecture     %s\nidentity         %s\n"
      "vocabulary       %u tokens\ncontext          %u tokens\n"
      "KV block         %u tokens\nprefill workers  %u\ndecode workers   %u\n",
      model->name().c_str(), model->architecture().c_str(),
      model->identity().c_str(), model->vocab_size(), model->max_context(),
      model->block_size(), model->num_prefill_workers(),
      model->num_decode_workers());
  if (!model->adapters().empty()) {
    std::printf("adapters         %s\n",
                absl::StrJoin(model->adapters(), ", ").c_str());
  }
  return kExitOk;
}

}  // namespace

void AddModelCommand(CLI::App* app, const std::string& program,
                     Command* chosen) {
  auto options = std::make_shared<ModelOptions>();
  CLI::App* model =
      app->add_subcommand("model", "Show what the cluster serves");
  AddAddressFlag(model, &options->router.address);
  model->add_flag("--json", options->json, "As one line of JSON");
  AddCredentialFlags(model, &options->router);
  model->footer(absl::StrCat("Example:\n  ", program, " model --json\n"));
  model->callback([options, chosen] {
    *chosen = [options] { return RunModel(*options); };
  });
}

}  // namespace baton::cli
