#include "cli/generate.h"

#include <atomic>
#include <memory>
#include <utility>

#include <google/protobuf/util/json_util.h>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "cli/generate_summary.h"
#include "cli/router_connection.h"
#include "cli/stop_signals.h"
#include "cli/text_output.h"
#include "client/client.h"
#include "common/clock.h"

namespace baton::cli {
namespace {

v1::GenerateRequest MakeRequest(const GenerateOptions& options) {
  v1::GenerateRequest request;
  request.set_model(options.model);
  if (options.tokens.empty()) {
    request.set_text(options.prompt);
  } else {
    request.mutable_token_ids()->mutable_ids()->Add(options.tokens.begin(),
                                                    options.tokens.end());
  }
  SetSampling(options.sampling, request.mutable_sampling());
  if (options.max_tokens) request.set_max_tokens(*options.max_tokens);
  request.set_ignore_eos(options.ignore_eos);
  request.set_request_id(options.request_id);
  return request;
}

std::string ToJsonLine(const v1::GenerateResponse& response) {
  google::protobuf::util::JsonPrintOptions format;
  format.preserve_proto_field_names = true;
  std::string line;
  const auto status =
      google::protobuf::util::MessageToJsonString(response, &line, format);
  // Only text that is no UTF-8 fails, and protobuf refuses that on the wire.
  if (!status.ok()) line = "{}";
  return line + "\n";
}

// Writes one stream of responses and remembers what the summary needs.
class Output final {
 public:
  Output(const GenerateOptions& options, std::FILE* out)
      : options_(options), out_(out), text_(out) {}

  void Begin() {
    if (options_.echo && !options_.json) text_.Write(options_.prompt);
  }

  void Add(const v1::GenerateResponse& response) {
    if (response.token_ids_size() > 0) {
      token_times_.push_back(Clock::Monotonic()->Now());
      tokens_ += response.token_ids_size();
    }
    if (response.finish_reason() != v1::FINISH_REASON_UNSPECIFIED) {
      last_ = response;
    }
    if (options_.json) {
      const std::string line = ToJsonLine(response);
      std::fwrite(line.data(), 1, line.size(), out_);
      std::fflush(out_);
    } else {
      text_.Write(response.text());
    }
  }

  // Text ends with the line; a pipe gets exactly what the model said, and one
  // line feed.
  void End() {
    if (options_.json) return;
    text_.EndLine();
  }

  bool broken() const { return text_.broken(); }
  const v1::GenerateResponse& last() const { return last_; }
  std::string Summary() const {
    return SummarizeGenerate(last_, token_times_, tokens_);
  }

 private:
  const GenerateOptions& options_;
  std::FILE* const out_;
  TextOutput text_;
  std::vector<absl::Time> token_times_;
  int64_t tokens_ = 0;
  v1::GenerateResponse last_;
};

}  // namespace

int RunGenerate(const GenerateOptions& options, std::FILE* out,
                std::FILE* err) {
  const auto fail = [&](const std::string& why) {
    std::fprintf(err, "baton generate: %s\n", why.c_str());
    return kExitFailed;
  };
  v1::GenerateRequest request = MakeRequest(options);
  if (const absl::Status set = SetFormat(options.format, &request); !set.ok()) {
    return fail(std::string(set.message()));
  }
  const absl::StatusOr<std::unique_ptr<client::Client>> router =
      ConnectToRouter(options.router, kConnectPatience);
  if (!router.ok()) return fail(std::string(router.status().message()));

  client::GenerateOptions call;
  call.timeout = absl::Seconds(options.timeout_seconds);
  std::atomic<bool> interrupted = false;
  Output output(options, out);
  absl::Status status;
  {
    const StopSignalWatch watch([&](int) {
      interrupted = true;
      call.cancel.Cancel();
    });
    output.Begin();
    status = (*router)->Generate(request, call,
                                 [&](const v1::GenerateResponse& response) {
                                   output.Add(response);
                                   return !output.broken();
                                 });
  }
  output.End();
  if (interrupted) {
    std::fprintf(err, "baton generate: cancelled\n");
    return kExitInterrupted;
  }
  if (output.broken()) return fail("cannot write the output");
  if (!status.ok()) return fail(DescribeError(status));
  if (!options.quiet && !options.json) {
    std::fputs(output.Summary().c_str(), err);
  }
  return output.last().finish_reason() == v1::FINISH_REASON_ERROR
             ? fail("the request ended with an error")
             : kExitOk;
}

}  // namespace baton::cli
