#pragma once
// Where the project's files are, and how other programs are started.

#include <map>
#include <string>
#include <vector>

namespace splash::cli {

// Every *.toml of the folders that definition_folders() names.
std::vector<std::string> all_definition_files();
std::string claims_folder();

// $SPLASH_PYTHON, else the project's own environment; "" if there is neither.
std::string python_program();

// PYTHONPATH with which Python finds the project's packages.
std::string python_path();

// Becomes `words`; the terminal, the folder and the environment stay, but for `environment`. Throws Error if
// that cannot be started.
[[noreturn]] void become_program(const std::vector<std::string>& words,
                                 const std::map<std::string, std::string>& environment);

// Becomes the command line of splash_laboratory.<module> in the project's Python, which finds this program in
// $SPLASH_BIN. Throws InvalidArgument if there is no Python; a package that is missing there is told in one
// sentence, with exit code 2.
[[noreturn]] void become_laboratory(const std::string& module, const std::vector<std::string>& words);

// Runs the program and waits for it. Its stdout goes to this program's stderr, or nowhere if quiet, or to the
// file, which must exist, if one is named. Returns its exit code, 127 if it could not be started, 128 + n if
// signal n ended it.
int run_program(const std::vector<std::string>& words, const std::map<std::string, std::string>& environment,
                bool quiet, const std::string& stdout_file = "");

}  // namespace splash::cli
