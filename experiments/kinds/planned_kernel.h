#pragma once
// A kernel variant on a problem, as its declaration counts it, for a GPU that need not be there.

#include <string>

#include "analysis/roofline.h"
#include "experiments/runner/kind.h"
#include "experiments/runner/machine.h"
#include "gpu/engine/variant.h"

namespace splash::experiments {

// The kernel with the most threads stands for a variant; small helpers beside it do not bound it.
const gpu::KernelLaunch& main_kernel(const gpu::Plan& plan);

// Which ceiling's dtype bounds the products: both 16-bit types run on one unit, at rates of their own.
std::string product_unit(const gpu::Plan& plan, Dtype dtype);

// All that a report's case holds but what only a run or CUDA tells: time, registers, static shared memory,
// resident blocks. Throws Unsupported where the variant does not take the problem on the GPU, InvalidArgument
// where parameters do not fit together or the variant is unknown.
analysis::KernelCase planned_kernel(const std::string& variant, const Parameters& parameters,
                                    const Machine& machine);

// The problem of a report's case, as parameters of the kind gpu-attention.
Parameters parameters_of(const analysis::Report& report, int64_t row);

}  // namespace splash::experiments
