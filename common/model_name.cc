#include "common/model_name.h"

#include <filesystem>

namespace baton {

std::string ModelName(const std::string& model) {
  std::filesystem::path path(model);
  if (!path.has_filename()) path = path.parent_path();
  return (path.extension() == ".gguf" ? path.stem() : path.filename()).string();
}

}  // namespace baton
