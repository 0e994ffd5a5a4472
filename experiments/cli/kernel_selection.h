#pragma once
// The arguments that analyze and diagnose share: a report, and which of its kernels.

#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "analysis/machine.h"
#include "analysis/roofline.h"

namespace splash::cli {

void add_report(CLI::App& app, std::string& report);
// Adds the options for the report and for its kernels.
void add_kernel_options(CLI::App& app, std::string& report, std::string& prefix);

// The kernels whose id starts with prefix and whose case id starts with case_id; throws InvalidArgument if
// there is none.
std::vector<analysis::KernelCase> selected_kernels(const report::Report& report, const std::string& prefix,
                                                   const std::string& case_id = "",
                                                   analysis::Calls calls = analysis::Calls::forward);
std::vector<analysis::KernelCase> chosen_kernels(std::vector<analysis::KernelCase> kernels,
                                                 const std::string& prefix, const std::string& case_id);

// The GPU that the report was recorded on, as analysis::machine_of() finds it. A message says what is missing
// where no file of data/machines describes it.
analysis::Machine machine_of(const report::Report& report);

}  // namespace splash::cli
