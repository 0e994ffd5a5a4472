#pragma once
// Cases of a report that `splash import` made of a profiler's table, or `splash bench` of a kernel that it
// timed: kernels of any kind.

#include <optional>

#include "analysis/named_columns.h"
#include "analysis/roofline.h"

namespace splash::analysis {

// The `method` by which such a case was timed.
constexpr const char* kProfilerMethod = "profiler";
constexpr const char* kBenchMethod = "bench";  // of `splash bench`, on a GPU and on the CPU

// Whether it is such a case, of a GPU.
bool is_profiled(const NamedColumns& table, int64_t row);

// Throws ReportError if the report lacks a column that every such case has.
KernelCase profiled_kernel(const NamedColumns& table, int64_t row);

// What the multiprocessors of a GPU that no file of data/machines describes hold, by compute capability (90
// is 9.0) and number; nothing if the capability is not known. Source: CUDA C++ Programming Guide, technical
// specifications per compute capability.
std::optional<Multiprocessors> multiprocessors_of(int compute_capability, int count);

// The same of the GPU that a report's profiled kernels ran on.
std::optional<Multiprocessors> profiled_multiprocessors(const report::Report& report);

}  // namespace splash::analysis
