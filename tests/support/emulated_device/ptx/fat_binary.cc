#include "tests/support/emulated_device/ptx/fat_binary.h"

#if defined(BATON_HAVE_ZSTD)
#include <zstd.h>
#endif

#include <cstdint>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>

#include "absl/strings/match.h"
#include "common/log.h"

namespace baton::engine::cuda::emulated::ptx {
namespace {

// How kernels lie in a library is not documented; what is used of it, found in
// what nvcc 13.0 writes, is here.
constexpr char kMagic[] = "\x50\xed\x55\xba";
struct Header {
  uint32_t magic;
  uint16_t version;
  uint16_t header_bytes;
  uint64_t bytes;  // behind the header
};
struct Entry {
  uint16_t kind;
  uint16_t version;
  uint32_t header_bytes;
  uint64_t bytes;  // behind the header
  uint32_t compressed_bytes;
  uint32_t unused[2];
  uint32_t architecture;
  uint64_t more_unused;
  uint64_t flags;
  uint64_t still_more_unused;
  uint64_t text_bytes;
};
static_assert(sizeof(Header) == 16 && sizeof(Entry) == 64);
constexpr uint16_t kText = 1;
constexpr uint32_t kHopper = 90;
constexpr uint64_t kZstd = 0x8000;
constexpr uint64_t kOtherCompression = 0x7000;

template <typename T>
T At(const std::string& file, size_t at) {
  T value;
  CHECK_LE(at + sizeof(value), file.size());
  std::memcpy(&value, file.data() + at, sizeof(value));
  return value;
}

// Of an entry that begins at `at`.
std::string TextOf(const std::string& file, size_t at, const Entry& entry) {
  const size_t begin = at + entry.header_bytes;
  CHECK_LE(begin + entry.bytes, file.size());
  if ((entry.flags & kZstd) == 0) {
    CHECK_EQ(entry.flags & kOtherCompression, 0u)
        << "kernels are compressed in a way that is not known";
    return file.substr(begin, entry.bytes);
  }
#if !defined(BATON_HAVE_ZSTD)
  LOG(FATAL) << "kernels are compressed, and this was built without zstd";
  return {};
#else
  constexpr uint64_t kMaxBytes = uint64_t{1} << 30;
  CHECK(entry.compressed_bytes <= entry.bytes && entry.text_bytes <= kMaxBytes);
  std::string text(entry.text_bytes, '\0');
  const size_t bytes = ZSTD_decompress(
      text.data(), text.size(), file.data() + begin, entry.compressed_bytes);
  CHECK(!ZSTD_isError(bytes)) << ZSTD_getErrorName(bytes);
  text.resize(bytes);
  return text;
#endif
}

}  // namespace

std::string ReadText(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  CHECK(stream.good()) << path << ": cannot be read";
  std::stringstream all;
  all << stream.rdbuf();
  const std::string file = all.str();
  const std::string magic(kMagic, 4);
  if (!absl::StrContains(file, magic)) return file;
  std::string texts;
  for (size_t at = file.find(magic); at != std::string::npos;
       at = file.find(magic, at + 1)) {
    if (at + sizeof(Header) > file.size()) break;
    const Header header = At<Header>(file, at);
    // Or what only looks like one.
    if (header.version != 1 || header.header_bytes != sizeof(Header) ||
        at + sizeof(Header) + header.bytes > file.size()) {
      continue;
    }
    size_t next = at + header.header_bytes;
    const size_t end = next + header.bytes;
    while (next + sizeof(Entry) <= end) {
      const Entry entry = At<Entry>(file, next);
      if (entry.kind == kText && entry.architecture == kHopper) {
        const std::string text = TextOf(file, next, entry);
        if (absl::StrContains(text, ".target sm_90a")) texts += text + "\n";
      }
      next += entry.header_bytes + entry.bytes;
    }
  }
  return texts;
}

}  // namespace baton::engine::cuda::emulated::ptx
