#include "tests/integration/packet_line.h"

#include <algorithm>
#include <utility>

#include "common/log.h"

namespace baton::test {

PacketLine::PacketLine(const LineOptions& options) : options_(options) {
  CHECK_GT(options.bytes_per_second, 0);
}

bool PacketLine::Push(std::string packet, absl::Time now) {
  const absl::Time begin = std::max(now, idle_from_);
  const double waiting =
      absl::ToDoubleSeconds(begin - now) * options_.bytes_per_second;
  const auto size = static_cast<double>(packet.size());
  if (waiting + size > static_cast<double>(options_.queue_bytes)) return false;
  idle_from_ = begin + absl::Seconds(size / options_.bytes_per_second);
  packets_.push_back({std::move(packet), idle_from_ + options_.delay});
  return true;
}

std::optional<std::string> PacketLine::Pop(absl::Time now) {
  if (packets_.empty() || packets_.front().arrives > now) return std::nullopt;
  std::string bytes = std::move(packets_.front().bytes);
  packets_.pop_front();
  return bytes;
}

absl::Time PacketLine::NextArrival() const {
  return packets_.empty() ? absl::InfiniteFuture() : packets_.front().arrives;
}

void PacketLine::Clear(absl::Time now) {
  packets_.clear();
  idle_from_ = now;
}

}  // namespace baton::test
