#pragma once
// Imported kernels on the terminal and as JSON.

#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "analysis/occupancy.h"
#include "analysis/roofline.h"
#include "experiments/cli/console.h"

namespace splash::cli {

// A row per kernel: its time, how busy each unit is, and how it fills the GPU.
TextTable profiled_table(const std::vector<analysis::KernelCase>& kernels,
                         const analysis::Multiprocessors& machine,
                         const std::vector<report::Ceiling>& ceilings);

// [{"unit": "DRAM", "share": 0.9, "of": "the profiler's peak", "possible": true}, ...]; share null: not
// known.
nlohmann::json resources_json(const analysis::KernelCase& kernel, const analysis::Multiprocessors& machine,
                              const std::vector<report::Ceiling>& ceilings);

// "NVIDIA H200, commit 0f12312", or that the kernels are imported. Its own line.
std::string origin_line(const report::Report& report, const std::vector<analysis::KernelCase>& kernels);

// One line per kernel whose table holds what cannot be: "impossible in saxpy: ...".
std::string impossible_lines(const std::vector<analysis::KernelCase>& kernels);

}  // namespace splash::cli
