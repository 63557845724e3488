// Stands in for baton-prefill, baton-decode and baton-router: takes their
// common flags, becomes ready, and ends on SIGTERM. Which member misbehaves,
// and how, is in --model: "KIND:NAME".
//   fails:NAME     says why on stderr and exits with 1 before it is ready
//   mute:NAME      is never ready
//   stubborn:NAME  stays after SIGTERM
//   babble:NAME    writes a ready line that is none
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>

#include "common/process/process.h"

int main(int argc, char** argv) {
  std::map<std::string, std::string> flags;
  for (int i = 1; i + 1 < argc; ++i) flags[argv[i]] = argv[i + 1];
  const std::string& name = flags["--name"];
  const std::string& model = flags["--model"];
  const int ready_fd = std::atoi(flags["--ready-fd"].c_str());
  const char* const gpus = std::getenv("CUDA_VISIBLE_DEVICES");
  const auto is = [&](const char* kind) { return model == kind + name; };

  baton::process::SetUpSignals(/*die_with_parent=*/true);
  std::fprintf(stderr, "%s starts\n", name.c_str());
  if (is("fails:")) {
    std::fprintf(stderr, "fake-member: the model is no good\n");
    return 1;
  }
  if (is("babble:")) {
    const char line[] = "hello\n";
    if (write(ready_fd, line, sizeof(line) - 1) < 0) return 1;
    close(ready_fd);
  } else if (!is("mute:")) {
    baton::process::ReportReady(ready_fd,
                                {{"name", name},
                                 {"grpc", "127.0.0.1:1"},
                                 {"metrics", name + ":9"},
                                 {"prefill", flags["--prefill"]},
                                 {"gpus", gpus != nullptr ? gpus : "unset"}});
  }
  baton::process::WaitForSignal();
  while (is("stubborn:")) pause();
  return 0;
}
