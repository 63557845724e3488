// The text of kernels in a library that nvcc made.
#pragma once

#include <string>

namespace baton::engine::cuda::emulated::ptx {

// All of it that is for sm_90a, one text after another; of a file that holds no
// kernels but text, that.
std::string ReadText(const std::string& path);

}  // namespace baton::engine::cuda::emulated::ptx
