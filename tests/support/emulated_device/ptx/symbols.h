// How the functions of this program are called.
#pragma once

#include <string>

namespace baton::engine::cuda::emulated::ptx {

// The demangled name of the function that begins there. Names of files are not
// part of it: what is in an anonymous namespace is called alike by all
// compilers.
std::string NameOf(const void* function);

// The same of a mangled name.
std::string Demangled(const std::string& mangled);

}  // namespace baton::engine::cuda::emulated::ptx
