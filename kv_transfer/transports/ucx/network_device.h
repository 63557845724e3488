// Which network device UCX is to use.
#pragma once

#include <string>

namespace baton::kv_transfer {

// The device that has the numeric address `host` ("eth0"). Empty when every
// device will do: for loopback and "any" addresses, and when no device of this
// machine has it.
std::string DeviceWithAddress(const std::string& host);

}  // namespace baton::kv_transfer
