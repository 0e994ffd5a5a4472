#pragma once
// What analyze and diagnose take: a report, and which of its kernels.

#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "analysis/roofline.h"

namespace splash::cli {

void add_kernel_options(CLI::App& app, std::string& report, std::string& prefix);

// Those whose id starts with prefix; throws InvalidArgument where there is none.
std::vector<analysis::KernelCase> selected_kernels(const analysis::Report& report, const std::string& prefix);

// Of the GPU that the report names, from data/machines; throws InvalidArgument where no file describes it.
analysis::Multiprocessors multiprocessors_of(const analysis::Report& report);

}  // namespace splash::cli
