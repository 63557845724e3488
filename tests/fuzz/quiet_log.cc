// Fuzz targets bring up warnings by the million: only what ends the process is
// logged.
#include "common/log.h"

namespace {

[[maybe_unused]] const bool quiet = [] {
  FLAGS_minloglevel = google::GLOG_FATAL;
  return true;
}();

}  // namespace
