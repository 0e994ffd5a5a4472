#pragma once
// How other programs are started.

#include <map>
#include <spawn.h>
#include <string>
#include <sys/types.h>
#include <vector>

namespace splash::experiments {

// Starts words[0], which the PATH finds, with the other words, these files and this program's environment but
// for `environment`. SIGPIPE and SIGXFSZ, which this program ignores, get their defaults back. Returns 0 and
// the child's number, else an error number.
int start_program(const std::vector<std::string>& words,
                  const std::map<std::string, std::string>& environment,
                  const posix_spawn_file_actions_t& files, pid_t& child);

}  // namespace splash::experiments
