#include "cli/format_flags.h"

#include <cstdint>
#include <utility>

#include "common/status_macros.h"
#include "common/watched_files.h"

namespace baton::cli {
namespace {

// More than a router takes, which says so.
constexpr int64_t kMaxFileBytes = 1 << 20;

}  // namespace

void AddFormatFlags(CLI::App* app, FormatFlags* flags) {
  CLI::Option_group* group = app->add_option_group("Format of the answer");
  group->add_flag("--json-object", flags->json_object,
                  "The answer is a JSON object");
  group
      ->add_option("--json-schema", flags->json_schema_file,
                   "The answer is JSON that the schema in this file allows")
      ->type_name("FILE");
  group
      ->add_option("--regex", flags->regex,
                   "The answer is what this regular expression matches")
      ->type_name("PATTERN");
  group
      ->add_option("--choice", flags->choices,
                   "The answer is this text, or that of another --choice")
      ->type_name("TEXT")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  group->require_option(0, 1);
}

absl::Status SetFormat(const FormatFlags& flags, v1::GenerateRequest* request) {
  if (flags.json_object) {
    request->mutable_response_format()->mutable_json_object();
  } else if (!flags.json_schema_file.empty()) {
    BATON_ASSIGN_OR_RETURN(
        std::string schema,
        ReadSmallFile(flags.json_schema_file, kMaxFileBytes));
    request->mutable_response_format()->set_json_schema(std::move(schema));
  } else if (!flags.regex.empty()) {
    request->mutable_response_format()->set_regex(flags.regex);
  } else if (!flags.choices.empty()) {
    for (const std::string& text : flags.choices) {
      request->mutable_response_format()->mutable_choice()->add_texts(text);
    }
  }
  return absl::OkStatus();
}

}  // namespace baton::cli
