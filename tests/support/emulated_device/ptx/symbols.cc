#include "tests/support/emulated_device/ptx/symbols.h"

#include <cxxabi.h>
#include <elf.h>
#include <link.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <sstream>
#include <string>

#include "common/log.h"

namespace baton::engine::cuda::emulated::ptx {
namespace {

// Where the program was loaded.
uintptr_t LoadAddress() {
  uintptr_t address = 0;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* out) {
        *static_cast<uintptr_t*>(out) = info->dlpi_addr;
        return 1;  // the first one is the program
      },
      &address);
  return address;
}

// All functions of the program's file, by where they begin in it.
std::map<uintptr_t, std::string> ReadSymbols() {
  std::ifstream file("/proc/self/exe", std::ios::binary);
  std::stringstream all;
  all << file.rdbuf();
  const std::string bytes = all.str();
  const auto read = [&](size_t at, auto* out) {
    CHECK_LE(at + sizeof(*out), bytes.size());
    std::memcpy(out, bytes.data() + at, sizeof(*out));
  };
  Elf64_Ehdr header;
  read(0, &header);
  std::map<uintptr_t, std::string> symbols;
  for (int i = 0; i < header.e_shnum; ++i) {
    Elf64_Shdr section;
    read(header.e_shoff + i * sizeof(section), &section);
    if (section.sh_type != SHT_SYMTAB) continue;
    Elf64_Shdr names;
    read(header.e_shoff + section.sh_link * sizeof(names), &names);
    for (size_t at = 0; at < section.sh_size; at += sizeof(Elf64_Sym)) {
      Elf64_Sym symbol;
      read(section.sh_offset + at, &symbol);
      if (ELF64_ST_TYPE(symbol.st_info) != STT_FUNC) continue;
      CHECK_LT(names.sh_offset + symbol.st_name, bytes.size());
      symbols[symbol.st_value] =
          bytes.c_str() + names.sh_offset + symbol.st_name;
    }
  }
  return symbols;
}

}  // namespace

std::string Demangled(const std::string& mangled) {
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> name(
      abi::__cxa_demangle(mangled.c_str(), nullptr, nullptr, &status),
      &std::free);
  return status == 0 ? name.get() : mangled;
}

std::string NameOf(const void* function) {
  static const auto* const symbols =
      new std::map<uintptr_t, std::string>(ReadSymbols());
  const auto place =
      symbols->find(reinterpret_cast<uintptr_t>(function) - LoadAddress());
  CHECK(place != symbols->end()) << "a function without a symbol";
  return Demangled(place->second);
}

}  // namespace baton::engine::cuda::emulated::ptx
