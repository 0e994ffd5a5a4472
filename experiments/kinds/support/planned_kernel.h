#pragma once
// A kernel variant on a problem, counted from its declaration without the GPU.

#include <string>

#include "analysis/machine.h"
#include "analysis/roofline.h"
#include "experiments/runner/kind.h"
#include "gpu/engine/variant.h"

namespace splash::experiments {

// The kernel with the most threads. It is the one that a report's columns describe; analysis/launches.h finds
// the one that takes longest.
const gpu::KernelLaunch& main_kernel(const gpu::Plan& plan);

// All kernels of the plan, each with the work that its trace counts; empty for a plan of one kernel.
// Registers are 0 and shared memory excludes the static part, because only CUDA knows these.
std::vector<analysis::Launch> planned_launches(const gpu::Plan& plan, const gpu::Work& work);

// The counted launches with registers and shared memory as CUDA recorded them.
std::vector<analysis::Launch> with_use(std::vector<analysis::Launch> counted,
                                       const std::vector<analysis::Launch>& recorded);

// Rows of the matrix instruction: 64 for wgmma, 16 for mma, otherwise 1. A tile holds a multiple of them.
int instruction_q(const gpu::Plan& plan);

// The dtype of the ceiling that bounds the products. Both 16-bit types run on one unit, but at different
// rates.
std::string product_unit(const gpu::Plan& plan, Dtype dtype);

// A case as a report holds it, with all launches, but without what only a run or CUDA knows: time, registers,
// static shared memory, resident blocks. Throws Unsupported if the variant does not take the problem on the
// GPU, InvalidArgument if parameters do not fit together or the variant is unknown.
analysis::KernelCase planned_kernel(const std::string& variant, const Parameters& parameters,
                                    const analysis::Machine& machine);

// Keys with weight per row if q, k and v are Gaussian: the mean of 16 rows of scores, drawn for queries from
// the first to the last. NaN for other normalizers than entmax, selections, and masks of positions or
// documents.
double sampled_support(const Parameters& parameters);

// The problem of a report's case, as parameters of the kind gpu-attention.
Parameters parameters_of(const report::Report& report, int64_t row);

}  // namespace splash::experiments
