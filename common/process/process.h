// What every Baton program does around its real work: signals, telling the one
// who started it that it is ready and on which ports, and drawing the number
// that tells its lives apart. Logging is common/log.h.
#pragma once

#include <map>
#include <string>

#include "absl/strings/string_view.h"
#include "common/ids.h"

namespace baton::process {

// Blocks SIGINT and SIGTERM for this thread and all that it starts, ignores
// SIGPIPE, and asks the kernel for SIGTERM when the parent process dies if
// `die_with_parent`. Call first in main, before any thread.
void SetUpSignals(bool die_with_parent);

// Waits until SIGINT or SIGTERM comes; returns which. REQUIRES: SetUpSignals.
int WaitForSignal();

// Writes {"ready":true,"NAME":"VALUE",...} and a line feed to the file
// descriptor and closes it; -1 does nothing. `baton up` reads the ports that
// its children took from there.
void ReportReady(int ready_fd,
                 const std::map<std::string, std::string>& fields);

// Random, never 0.
Incarnation DrawIncarnation();

}  // namespace baton::process
