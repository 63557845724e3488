#include "planner/profile.h"

#include <fstream>
#include <set>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "planner/decode_simulation.h"

namespace baton::planner {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr char kKind[] = "baton_profile";
constexpr double kMostSeconds = 3600;
constexpr double kMostCount = 1e9;

// One object of the file. The first thing that is wrong stays in `status`.
class Reader final {
 public:
  Reader(const json& object, std::string where, absl::Status* status)
      : object_(object), where_(std::move(where)), status_(status) {
    if (!object_.is_object()) Fail(" is no object");
  }

  // Leaves `value` as it is when the field is not there.
  void Seconds(const char* field, double* value) {
    Number(field, 0, kMostSeconds, value);
  }
  void Number(const char* field, double least, double most, double* value) {
    const json* found = Find(field);
    if (found == nullptr) return;
    if (!found->is_number() || !(found->get<double>() >= least) ||
        !(found->get<double>() <= most)) {
      Fail(absl::StrCat(".", field, " is no number in [", least, ", ", most,
                        "]"));
      return;
    }
    *value = found->get<double>();
  }
  template <typename Int>
  void Whole(const char* field, double least, double most, Int* value) {
    const json* found = Find(field);
    if (found == nullptr) return;
    if (!found->is_number_integer() || found->get<double>() < least ||
        found->get<double>() > most) {
      Fail(absl::StrCat(".", field, " is no whole number in [", least, ", ",
                        most, "]"));
      return;
    }
    *value = static_cast<Int>(found->get<int64_t>());
  }
  void Text(const char* field, std::string* value) {
    const json* found = Find(field);
    if (found == nullptr) return;
    if (!found->is_string()) {
      Fail(absl::StrCat(".", field, " is no text"));
      return;
    }
    *value = found->get<std::string>();
  }
  const json* Find(const char* field) {
    known_.insert(field);
    if (!object_.is_object()) return nullptr;
    const auto found = object_.find(field);
    return found == object_.end() ? nullptr : &*found;
  }
  // A name that is spelled wrong would be a number that is not heeded.
  void RefuseOthers() {
    if (!object_.is_object()) return;
    for (const auto& [name, value] : object_.items()) {
      if (known_.count(name) == 0) {
        Fail(absl::StrCat(".", name, " is not known"));
      }
    }
  }

 private:
  void Fail(const std::string& problem) {
    if (status_->ok()) {
      *status_ = absl::InvalidArgumentError(absl::StrCat(where_, problem));
    }
  }

  const json& object_;
  const std::string where_;
  absl::Status* const status_;
  std::set<std::string> known_;
};

void ReadWorker(const json& object, const std::string& where,
                absl::Status* status, WorkerProfile* worker) {
  Reader reader(object, where, status);
  scheduling::StepCost& step = worker->cost;
  reader.Seconds("fixed_seconds", &step.fixed);
  reader.Seconds("seconds_per_token", &step.per_token);
  reader.Seconds("seconds_per_context_token", &step.per_context_token);
  reader.Seconds("seconds_per_sequence", &step.per_sequence);
  step.per_prompt_context_token = step.per_context_token;
  reader.Seconds("seconds_per_prompt_context_token",
                 &step.per_prompt_context_token);
  reader.Whole("block_size", 1, 1 << 20, &worker->block_size);
  reader.Whole("total_blocks", 1, kMostCount, &worker->total_blocks);
  reader.Whole("max_sequences", 1, 1 << 20, &worker->max_sequences);
  reader.Whole("max_context", 1, kMostCount, &worker->max_context);
  reader.Whole("token_budget", 1, 1 << 20, &worker->token_budget);
  reader.Whole("max_queued_tokens", 1, 1e15, &worker->max_queued_tokens);
  reader.RefuseOthers();
}

absl::Status CheckWorker(const char* role, const WorkerProfile& worker) {
  // A simulation needs requests that take time, whatever they read. Each of
  // them is sampled from.
  const scheduling::StepCost& cost = worker.cost;
  if (!(cost.fixed > 0 || cost.per_token > 0 || cost.per_sequence > 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat(role,
                     ": fixed_seconds, seconds_per_token or "
                     "seconds_per_sequence must be above 0"));
  }
  return absl::OkStatus();
}

ordered_json WorkerJson(const WorkerProfile& worker) {
  const scheduling::StepCost& step = worker.cost;
  ordered_json out = {
      {"fixed_seconds", step.fixed},
      {"seconds_per_token", step.per_token},
      {"seconds_per_context_token", step.per_context_token},
      {"seconds_per_sequence", step.per_sequence},
  };
  if (step.per_prompt_context_token != step.per_context_token) {
    out["seconds_per_prompt_context_token"] = step.per_prompt_context_token;
  }
  out["block_size"] = worker.block_size;
  out["total_blocks"] = worker.total_blocks;
  out["max_sequences"] = worker.max_sequences;
  out["max_context"] = worker.max_context;
  out["token_budget"] = worker.token_budget;
  out["max_queued_tokens"] = worker.max_queued_tokens;
  return out;
}

}  // namespace

absl::Status Validate(const ClusterProfile& profile) {
  BATON_RETURN_IF_ERROR(CheckWorker("prefill", profile.prefill));
  BATON_RETURN_IF_ERROR(CheckWorker("decode", profile.decode));
  const WorkerProfile& decode = profile.decode;
  const int32_t most = DecodeSimulation::MostSequences(decode.token_budget);
  if (decode.max_sequences > most) {
    return absl::InvalidArgumentError(
        absl::StrCat("decode.max_sequences is ", decode.max_sequences,
                     "; with a ", "token_budget of ", decode.token_budget,
                     " at most ", most, " can be simulated"));
  }
  return absl::OkStatus();
}

absl::StatusOr<ClusterProfile> ParseProfile(absl::string_view text,
                                            const std::string& where) {
  const json object = json::parse(text.begin(), text.end(), nullptr,
                                  /*allow_exceptions=*/false);
  if (object.is_discarded()) {
    return absl::InvalidArgumentError(absl::StrCat(where, " is no JSON"));
  }
  absl::Status status;
  ClusterProfile profile;
  Reader reader(object, where, &status);
  std::string kind;
  reader.Text("kind", &kind);
  int32_t version = 0;
  reader.Whole("version", 0, kMostCount, &version);
  reader.Text("source", &profile.source);
  reader.Whole("kv_bytes_per_token", 0, 1e12, &profile.kv_bytes_per_token);
  reader.Whole("num_layers", 1, 1e5, &profile.num_layers);
  reader.Number("link_bytes_per_second", 0, 1e15,
                &profile.link_bytes_per_second);
  reader.Seconds("link_latency_seconds", &profile.link_latency_seconds);
  const json* decode = reader.Find("decode");
  const json* prefill = reader.Find("prefill");
  reader.RefuseOthers();
  BATON_RETURN_IF_ERROR(status);
  if (kind != kKind || version != 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        where, ": \"kind\" is not \"", kKind, "\", or \"version\" is not 1"));
  }
  if (decode == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(where, " has no .decode"));
  }
  ReadWorker(*decode, absl::StrCat(where, ": .decode"), &status,
             &profile.decode);
  // Without measured prefill workers, they are as the others are.
  ReadWorker(prefill == nullptr ? *decode : *prefill,
             absl::StrCat(where, ": .prefill"), &status, &profile.prefill);
  BATON_RETURN_IF_ERROR(status);
  if (absl::Status valid = Validate(profile); !valid.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(where, ": ", valid.message()));
  }
  return profile;
}

absl::StatusOr<ClusterProfile> ReadProfile(const std::string& path) {
  std::ifstream file(path);
  if (!file) return absl::NotFoundError(absl::StrCat("cannot open ", path));
  std::stringstream text;
  text << file.rdbuf();
  return ParseProfile(text.str(), path);
}

ordered_json ProfileJson(const ClusterProfile& profile) {
  return {{"kind", kKind},
          {"version", 1},
          {"source", profile.source},
          {"kv_bytes_per_token", profile.kv_bytes_per_token},
          {"num_layers", profile.num_layers},
          {"link_bytes_per_second", profile.link_bytes_per_second},
          {"link_latency_seconds", profile.link_latency_seconds},
          {"prefill", WorkerJson(profile.prefill)},
          {"decode", WorkerJson(profile.decode)}};
}

}  // namespace baton::planner
