#include "model_tools/synth_model.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/json.h"
#include "common/output_file.h"
#include "common/status_macros.h"
#include "engine/cpu/thread_team.h"
#include "engine/json_file.h"
#include "engine/mxfp4.h"
#include "model_tools/model_tensors.h"
#include "model_tools/output_directory.h"
#include "model_tools/synth_config.h"
#include "model_tools/synth_tokenizer.h"
#include "model_tools/synth_values.h"

namespace baton::model_tools {
namespace {

using engine::DType;
using engine::ModelConfig;
using nlohmann::ordered_json;

constexpr char kRecipeFile[] = "synth.json";
constexpr int64_t kMaxRecipeBytes = int64_t{1} << 20;

// What one turn draws and writes, and what one thread takes of it.
constexpr int64_t kBufferBytes = int64_t{32} << 20;
constexpr int64_t kPieceElements = int64_t{1} << 16;
static_assert(kPieceElements % NormalValues::kGranule == 0);

// Room for what is not tensors, when we ask whether the disk has enough: of the
// tokenizer, and of the rest.
constexpr int64_t kTokenBytes = 32;
constexpr int64_t kConfigFilesBytes = int64_t{1} << 20;

// Which random numbers the same recipe stands for.
constexpr int kRecipeVersion = 1;

ordered_json ModelConfigJson(const SynthOptions& options) {
  ordered_json json = ConfigJson(options.config, options.dtype);
  if (options.mxfp4) {
    json["quantization_config"] = {{"quant_method", "mxfp4"}};
  }
  return json;
}

ordered_json RecipeJson(const SynthOptions& options) {
  return {{"made_by", "baton synth"},
          {"version", kRecipeVersion},
          {"shape", options.shape},
          {"seed", options.seed},
          {"dtype", engine::DTypeName(options.dtype)},
          {"max_shard_bytes", options.max_shard_bytes},
          {"config", ModelConfigJson(options)}};
}

absl::Status CheckMxfp4(const SynthOptions& options) {
  const ModelConfig& config = options.config;
  if (!options.mxfp4) return absl::OkStatus();
  if (config.architecture != engine::Architecture::kGptOss) {
    return absl::InvalidArgumentError(
        absl::StrCat("mxfp4: is of gpt-oss, not of ", options.shape));
  }
  for (const auto& [name, size] :
       {std::pair("hidden", config.hidden_size),
        std::pair("intermediate", config.experts.intermediate_size)}) {
    if (size % engine::kMxfp4Group == 0) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": ", size, " is no multiple of ",
                     engine::kMxfp4Group, ", as mxfp4 needs it"));
  }
  return absl::OkStatus();
}

// The standard deviation of most weights: 0.02, as models are initialized with;
// more in narrow ones, so that products do not vanish.
float Spread(const ModelConfig& config) {
  return std::max(0.02f,
                  0.48f / std::sqrt(static_cast<float>(config.hidden_size)));
}

// The rows of tokens that should not be said are this much smaller.
constexpr float kUnprintableScale = 1.0f / 16;

// With which the numbers of MXFP4 have about the same spread: they are 2.9 in
// the mean of their squares' roots, each as likely.
std::byte Mxfp4Exponent(const ModelConfig& config) {
  return static_cast<std::byte>(
      std::lround(127 + std::log2(Spread(config) / 2.9f)));
}

// The distributions that a model's tensors are drawn from.
struct Distributions {
  explicit Distributions(const SynthOptions& options)
      : matrix(options.dtype, 0.0f, Spread(options.config)),
        query_key(
            options.dtype, 0.0f,
            2.0f / std::sqrt(static_cast<float>(options.config.hidden_size))),
        residual(options.dtype, 0.0f,
                 Spread(options.config) *
                     std::min(1.0f,
                              4 / std::sqrt(2.0f * options.config.num_layers))),
        norm(options.dtype,
             1.0f - static_cast<float>(options.config.norm_offset), 0.02f),
        unprintable(options.dtype, 0.0f,
                    Spread(options.config) * kUnprintableScale) {}

  const NormalValues& Of(TensorRole role) const {
    switch (role) {
      case TensorRole::kNorm:
        return norm;
      case TensorRole::kQueryKeyMatrix:
        return query_key;
      case TensorRole::kResidualMatrix:
        return residual;
      default:
        return matrix;
    }
  }

  const NormalValues matrix, query_key, residual, norm, unprintable;
};

// A file of tensors.
struct Shard {
  std::vector<TensorSpec> tensors;
  int64_t bytes = 0;
  std::string name;
};

int64_t BytesOf(const TensorSpec& tensor, DType dtype) {
  return tensor.num_elements() * engine::DTypeBytes(tensor.TypeIn(dtype));
}

std::vector<Shard> PlanShards(const SynthOptions& options) {
  std::vector<Shard> shards(1);
  for (TensorSpec& tensor : ListTensors(options.config, options.mxfp4)) {
    const int64_t bytes = BytesOf(tensor, options.dtype);
    if (shards.back().bytes > 0 &&
        shards.back().bytes + bytes > options.max_shard_bytes) {
      shards.emplace_back();
    }
    shards.back().tensors.push_back(std::move(tensor));
    shards.back().bytes += bytes;
  }
  for (size_t i = 0; i < shards.size(); ++i) {
    shards[i].name = shards.size() == 1
                         ? "model.safetensors"
                         : absl::StrFormat("model-%05d-of-%05d.safetensors",
                                           i + 1, shards.size());
  }
  return shards;
}

// The header of a safetensors file, its length before it.
std::string ShardHeader(const Shard& shard, DType dtype) {
  ordered_json header = {{"__metadata__", {{"format", "pt"}}}};
  int64_t offset = 0;
  for (const TensorSpec& tensor : shard.tensors) {
    const int64_t end = offset + BytesOf(tensor, dtype);
    header[tensor.name] = {{"dtype", engine::DTypeName(tensor.TypeIn(dtype))},
                           {"shape", tensor.shape},
                           {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const uint64_t length = text.size();
  std::string bytes(sizeof(length), '\0');
  std::memcpy(bytes.data(), &length, sizeof(length));
  return bytes + text;
}

ordered_json IndexJson(const std::vector<Shard>& shards) {
  int64_t total = 0;
  ordered_json map = ordered_json::object();
  for (const Shard& shard : shards) {
    total += shard.bytes;
    for (const TensorSpec& tensor : shard.tensors) {
      map[tensor.name] = shard.name;
    }
  }
  return {{"metadata", {{"total_size", total}}}, {"weight_map", map}};
}

// Draws tensors and writes them, a buffer at a time.
class ModelWriter final {
 public:
  ModelWriter(const SynthOptions& options, std::string dir,
              SynthProgress progress)
      : options_(options),
        dir_(std::move(dir)),
        progress_(progress),
        distributions_(options),
        team_(options.num_threads),
        element_bytes_(engine::DTypeBytes(options.dtype)),
        buffer_(kBufferBytes) {}

  absl::Status Write(const std::vector<Shard>& shards) {
    for (const Shard& shard : shards) total_ += shard.bytes;
    const ModelConfig& config = options_.config;
    BATON_RETURN_IF_ERROR(WriteJson("config.json", ModelConfigJson(options_)));
    BATON_RETURN_IF_ERROR(
        WriteJson("generation_config.json", GenerationConfigJson(config)));
    BATON_RETURN_IF_ERROR(WriteTextFile(Path("tokenizer.json"),
                                        SynthTokenizerJson(config.vocab_size)));
    BATON_RETURN_IF_ERROR(
        WriteTextFile(Path("tokenizer_config.json"),
                      SynthTokenizerConfigJson(config.max_position)));
    for (const Shard& shard : shards) {
      BATON_RETURN_IF_ERROR(WriteShard(shard));
    }
    if (shards.size() == 1) return absl::OkStatus();
    return WriteJson("model.safetensors.index.json", IndexJson(shards));
  }

 private:
  std::string Path(const std::string& name) const {
    return absl::StrCat(dir_, "/", name);
  }

  absl::Status WriteJson(const std::string& name, const ordered_json& json) {
    return WriteTextFile(Path(name), absl::StrCat(json.dump(1), "\n"));
  }

  absl::Status WriteShard(const Shard& shard) {
    BATON_ASSIGN_OR_RETURN(OutputFile file,
                           OutputFile::Create(Path(shard.name)));
    BATON_RETURN_IF_ERROR(file.Write(ShardHeader(shard, options_.dtype)));
    for (const TensorSpec& tensor : shard.tensors) {
      BATON_RETURN_IF_ERROR(WriteTensor(tensor, &file));
    }
    return file.Close();
  }

  absl::Status WriteTensor(const TensorSpec& tensor, OutputFile* file) {
    const int64_t size = tensor.num_elements();
    const int64_t element_bytes =
        engine::DTypeBytes(tensor.TypeIn(options_.dtype));
    const int64_t turn = kBufferBytes / element_bytes;
    for (int64_t first = 0; first < size; first += turn) {
      const int64_t n = std::min(turn, size - first);
      if (tensor.role == TensorRole::kMxfp4Numbers) {
        FillRandom(options_.seed, tensor.name, first,
                   absl::MakeSpan(buffer_).subspan(0, n));
      } else if (tensor.role == TensorRole::kMxfp4Exponents) {
        std::fill_n(buffer_.data(), n, Mxfp4Exponent(options_.config));
      } else {
        Draw(tensor, first, n);
      }
      const auto bytes = static_cast<size_t>(n * element_bytes);
      BATON_RETURN_IF_ERROR(
          file->Write(absl::MakeConstSpan(buffer_.data(), bytes)));
      done_ += n * element_bytes;
      progress_(done_, total_);
    }
    return absl::OkStatus();
  }

  // Fills the buffer with elements [first, first + n) of the tensor.
  void Draw(const TensorSpec& tensor, int64_t first, int64_t n) {
    const NormalValues& values = distributions_.Of(tensor.role);
    const int64_t pieces = (n + kPieceElements - 1) / kPieceElements;
    team_.ParallelFor(pieces, [&](int64_t piece, int32_t) {
      const int64_t begin = piece * kPieceElements;
      const int64_t count = std::min(kPieceElements, n - begin);
      values.Fill(options_.seed, tensor.name, first + begin,
                  Elements(begin, count));
    });
    if (tensor.role == TensorRole::kLmHead ||
        (tensor.role == TensorRole::kEmbedding &&
         options_.config.tie_word_embeddings)) {
      Silence(tensor, first, n);
    }
  }

  // Makes the rows of tokens that should not be said small.
  void Silence(const TensorSpec& tensor, int64_t first, int64_t n) {
    const int64_t columns = options_.config.hidden_size;
    const int64_t rows = std::min<int64_t>(kSynthEos + 1, tensor.shape[0]);
    std::vector<std::byte> row(columns * element_bytes_);
    for (int64_t token = 0; token < rows; ++token) {
      if (IsPrintableSynthToken(static_cast<TokenId>(token))) continue;
      const int64_t begin = std::max(first, token * columns);
      const int64_t end = std::min(first + n, (token + 1) * columns);
      if (begin >= end) continue;
      // A row is drawn from its own beginning, which needs no alignment.
      distributions_.unprintable.Fill(options_.seed,
                                      absl::StrCat(tensor.name, "#", token), 0,
                                      absl::MakeSpan(row));
      std::memcpy(buffer_.data() + (begin - first) * element_bytes_,
                  row.data() + (begin - token * columns) * element_bytes_,
                  (end - begin) * element_bytes_);
    }
  }

  absl::Span<std::byte> Elements(int64_t begin, int64_t n) {
    return absl::MakeSpan(buffer_).subspan(begin * element_bytes_,
                                           n * element_bytes_);
  }

  const SynthOptions& options_;
  const std::string dir_;
  const SynthProgress progress_;
  const Distributions distributions_;
  engine::cpu::ThreadTeam team_;
  const int64_t element_bytes_;
  std::vector<std::byte> buffer_;
  int64_t done_ = 0;
  int64_t total_ = 0;
};

bool HasSameRecipe(const std::string& dir, const SynthOptions& options) {
  const auto recipe =
      engine::ReadJsonObject(dir + "/" + kRecipeFile, kMaxRecipeBytes);
  return recipe.ok() && *recipe == nlohmann::json(RecipeJson(options));
}

}  // namespace

absl::StatusOr<SynthResult> WriteSynthModel(const std::string& dir,
                                            const SynthOptions& options,
                                            SynthProgress progress) {
  BATON_RETURN_IF_ERROR(CheckMxfp4(options));
  const std::vector<Shard> shards = PlanShards(options);
  SynthResult result;
  result.parameters = CountParameters(options.config);
  for (const Shard& shard : shards) result.bytes += shard.bytes;
  result.files = static_cast<int32_t>(shards.size());
  if (HasSameRecipe(dir, options)) {
    result.existed = true;
    return result;
  }
  BATON_ASSIGN_OR_RETURN(
      OutputDirectory output,
      OutputDirectory::Begin(dir, kRecipeFile, options.replace));
  BATON_RETURN_IF_ERROR(
      WriteTextFile(output.File(kRecipeFile),
                    absl::StrCat(RecipeJson(options).dump(1), "\n")));
  BATON_RETURN_IF_ERROR(
      output.CheckSpace(result.bytes + options.config.vocab_size * kTokenBytes +
                        kConfigFilesBytes));
  BATON_RETURN_IF_ERROR(
      ModelWriter(options, output.path(), progress).Write(shards));
  BATON_RETURN_IF_ERROR(output.Commit());
  return result;
}

}  // namespace baton::model_tools
