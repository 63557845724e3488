#include "common/log.h"

namespace baton {

void InitLogging(const std::string& program_name) {
  // glog keeps the pointer, so the name lives as long as the process.
  static const std::string* const name = new std::string(program_name);
  FLAGS_logtostderr = true;
  FLAGS_log_prefix = true;
  google::InitGoogleLogging(name->c_str());
}

}  // namespace baton
