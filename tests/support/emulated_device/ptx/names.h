// The registers of a kernel's text, by name, and what stands in their place:
// constants, special registers and addresses. For parser.cc.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/string_view.h"
#include "tests/support/emulated_device/ptx/program.h"

namespace baton::engine::cuda::emulated::ptx {

std::optional<Type> ParseType(absl::string_view word);

// "a, {b, c}, [d+4]" at its commas outside of brackets.
std::vector<absl::string_view> SplitOperands(absl::string_view text);

class Names {
 protected:
  void BeginScope();
  void EndScope();
  // Of registers, or of the kernel's local memory.
  void Declare(absl::string_view text);
  // A register that holds that before the kernel begins.
  int PresetOf(Preset preset, int64_t value, int bytes);
  // The register of an operand; of a constant, one that holds it.
  int Operand(absl::string_view text, int bytes);
  // The same of "[%rd1+8]": its register, and the offset.
  void Address(absl::string_view text, Instruction* out);
  // Of a register, or of those of a vector: how many.
  int Operands(absl::string_view text, int bytes, Instruction* out);
  // Ends the process, naming the line.
  [[noreturn]] void Fail(absl::string_view what) const;

  Kernel kernel_;
  int line_ = 0;
  std::vector<int> scope_ids_;  // those that the line is in

 private:
  struct Registers {
    Type type;
    std::map<int, int> numbers;  // of one name with many numbers; 0 of one
  };

  int NewRegister(int bytes);
  int Numbered(Registers& registers, int number);
  Registers* Find(const std::string& name);
  std::optional<int64_t> ConstantOf(absl::string_view text) const;

  std::vector<std::map<std::string, Registers>> scopes_;
  int last_scope_ = 0;
  std::map<std::tuple<Preset, int64_t, int>, int> preset_numbers_;
  std::string local_;
};

}  // namespace baton::engine::cuda::emulated::ptx
