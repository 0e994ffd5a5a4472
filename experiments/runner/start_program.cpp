#include "experiments/runner/start_program.h"

#include <csignal>
#include <unistd.h>

#include <fmt/format.h>

extern char** environ;

namespace splash::experiments {
namespace {

std::vector<char*> pointers_to(const std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (const std::string& text : texts) pointers.push_back(const_cast<char*>(text.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

}  // namespace

int start_program(const std::vector<std::string>& words,
                  const std::map<std::string, std::string>& environment,
                  const posix_spawn_file_actions_t& files, pid_t& child) {
  std::vector<std::string> settings;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string setting = *entry;
    if (!environment.contains(setting.substr(0, setting.find('=')))) settings.push_back(setting);
  }
  for (const auto& [name, value] : environment) settings.push_back(fmt::format("{}={}", name, value));
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t defaults;
  sigemptyset(&defaults);
  sigaddset(&defaults, SIGPIPE);
  sigaddset(&defaults, SIGXFSZ);
  posix_spawnattr_setsigdefault(&attributes, &defaults);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF);
  const int failed = posix_spawnp(&child, words.front().c_str(), &files, &attributes,
                                  pointers_to(words).data(), pointers_to(settings).data());
  posix_spawnattr_destroy(&attributes);
  return failed;
}

}  // namespace splash::experiments
