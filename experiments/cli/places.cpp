#include "experiments/cli/places.h"

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fmt/format.h>

#include "core/error.h"
#include "experiments/runner/definition.h"
#include "experiments/runner/project_root.h"
#include "experiments/runner/start_program.h"

namespace splash::cli {

using experiments::project_root;

namespace fs = std::filesystem;

std::vector<std::string> all_definition_files() {
  std::vector<std::string> files;
  for (const std::string& folder : experiments::definition_folders()) {
    for (std::string& file : experiments::definition_files(folder)) files.push_back(std::move(file));
  }
  return files;
}
std::string claims_folder() {
  return project_root() + "/data/claims";
}

std::string python_program() {
  const char* python = std::getenv("SPLASH_PYTHON");
  if (python != nullptr && *python != '\0') return python;
  const std::string own = project_root() + "/.venv/bin/python";
  return fs::exists(own) ? own : "";
}

std::string python_path() {
  const char* path = std::getenv("PYTHONPATH");
  return project_root() + "/python" + (path != nullptr && *path != '\0' ? std::string(":") + path : "");
}

void become_program(const std::vector<std::string>& words,
                    const std::map<std::string, std::string>& environment) {
  for (const auto& [name, value] : environment) setenv(name.c_str(), value.c_str(), 1);
  std::vector<char*> arguments;
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  for (const int number : {SIGPIPE, SIGXFSZ}) std::signal(number, SIG_DFL);  // this program ignores them
  execvp(arguments[0], arguments.data());
  const std::string why = std::strerror(errno);
  for (const int number : {SIGPIPE, SIGXFSZ}) std::signal(number, SIG_IGN);
  throw Error(fmt::format("{} could not be started ({})", words.front(), why));
}

void become_laboratory(const std::string& module, const std::vector<std::string>& words) {
  const std::string python = python_program();
  if (python.empty())
    throw InvalidArgument(
        "this needs Python: SPLASH_PYTHON is not set and the project has no .venv (./splash makes one)");
  const std::string script = fmt::format(R"(import sys
try:
    from splash_laboratory.{}.cli import main
except ModuleNotFoundError as missing:
    print(f"splash: {{sys.executable}} lacks the package {{missing.name}}; ./splash installs what is needed, or pip "
          "install -r python/requirements.txt", file=sys.stderr)
    sys.exit(2)
sys.exit(main(sys.argv[1:])))",
                                         module);
  std::vector<std::string> all{python, "-c", script};
  all.insert(all.end(), words.begin(), words.end());
  become_program(
      all, {{"PYTHONPATH", python_path()}, {"SPLASH_BIN", fs::read_symlink("/proc/self/exe").string()}});
}

int run_program(const std::vector<std::string>& words, const std::map<std::string, std::string>& environment,
                bool quiet, const std::string& stdout_file) {
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  if (quiet) {
    posix_spawn_file_actions_addopen(&files, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  }
  if (stdout_file.empty()) {
    posix_spawn_file_actions_adddup2(&files, STDERR_FILENO, STDOUT_FILENO);
  } else {
    posix_spawn_file_actions_addopen(&files, STDOUT_FILENO, stdout_file.c_str(), O_WRONLY | O_TRUNC, 0);
  }
  pid_t child = 0;
  const int failed = experiments::start_program(words, environment, files, child);
  posix_spawn_file_actions_destroy(&files);
  if (failed != 0) return 127;
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace splash::cli
