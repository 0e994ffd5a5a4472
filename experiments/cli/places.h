#pragma once
// Where the project's files are, and how other programs are started.

#include <map>
#include <string>
#include <vector>

namespace splash::cli {

// Every *.toml of experiments/definitions and experiments/ladders.
std::vector<std::string> all_definition_files();
std::string claims_folder();

// $SPLASH_PYTHON, else the project's own environment; "" where there is neither.
std::string python_program();

// Waits for the program; its stdout goes to our stderr, or nowhere if quiet. Returns its exit code, 127 where
// it could not be started, 128 + n where signal n ended it.
int run_program(const std::vector<std::string>& words, const std::map<std::string, std::string>& environment,
                bool quiet);

}  // namespace splash::cli
