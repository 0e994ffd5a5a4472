#pragma once
// A kernel variant on a problem, as its declaration counts it, for a GPU that need not be there.

#include <string>

#include "analysis/machine.h"
#include "analysis/roofline.h"
#include "experiments/runner/kind.h"
#include "gpu/engine/variant.h"

namespace splash::experiments {

// The kernel with the most threads: recorded columns of one kernel are of it. Which takes longest, analysis
// tells (launches.h).
const gpu::KernelLaunch& main_kernel(const gpu::Plan& plan);

// All kernels of the plan with what each of their traces asks; empty where there is one. Registers 0, and
// shared memory without static: CUDA knows them.
std::vector<analysis::Launch> planned_launches(const gpu::Plan& plan, const gpu::Work& work);

// The counts with what CUDA told of the same kernels where they ran.
std::vector<analysis::Launch> with_use(std::vector<analysis::Launch> counted,
                                       const std::vector<analysis::Launch>& recorded);

// Rows of the instruction that multiplies, of which a tile has a multiple: 64 of wgmma, 16 of mma, else 1.
int instruction_q(const gpu::Plan& plan);

// Which ceiling's dtype bounds the products: both 16-bit types run on one unit, at rates of their own.
std::string product_unit(const gpu::Plan& plan, Dtype dtype);

// All that a report's case holds, and all launches, but what only a run or CUDA tells: time, registers,
// static shared memory, resident blocks. Throws Unsupported where the variant does not take the problem on
// the GPU, InvalidArgument where parameters do not fit together or the variant is unknown.
analysis::KernelCase planned_kernel(const std::string& variant, const Parameters& parameters,
                                    const analysis::Machine& machine);

// The problem of a report's case, as parameters of the kind gpu-attention.
Parameters parameters_of(const report::Report& report, int64_t row);

}  // namespace splash::experiments
