#include "tests/sim/sim_model.h"

#include <utility>

#include "common/log.h"
#include "engine/model_config.h"
#include "tests/sim/sim_engine.h"

namespace baton::sim {

const router::ServedModel& SimModel() {
  static const router::ServedModel* model = [] {
    auto tokenizer =
        router::Tokenizer::Load(BATON_SOURCE_DIR "/models/stories");
    CHECK(tokenizer.ok()) << tokenizer.status();
    auto* made = new router::ServedModel;
    made->name = "sim";
    made->architecture = ArchitectureName(engine::ModelConfig().architecture);
    made->vocab_size = kVocabSize;
    made->num_layers = kNumLayers;
    made->max_context = kMaxPosition;
    made->tokenizer = *std::move(tokenizer);
    return made;
  }();
  return *model;
}

}  // namespace baton::sim
