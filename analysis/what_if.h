#pragma once
// How long a kernel would take on another problem or another GPU, from cases of it that were measured.
//
// The model: starting the kernels, and behind that the floors of all levels together, divided by what is left
// of full waves (roofline.h, occupancy.h), times a factor of the kernel's own. The factor is that of the
// measured case that is nearest in its floors and its head_dim: what a kernel loses changes with its size,
// and not suddenly. How far such predictions are off is learnt from the report itself: each case is predicted
// from cases of its kernel on other problems, and compared.

#include <string>
#include <vector>

#include "analysis/roofline.h"

namespace splash::analysis {

struct Prediction {
  double seconds = 0;
  double low = 0, high = 0;  // eight of ten held-out cases lay as close
  double factor = 1;         // of the model's base
  std::string from;          // case_id of the measured case that it is taken from
  int held_out = 0;          // cases that the interval is learnt from
};

// Kernels with at least this many held-out cases have an interval of their own; others share one with all.
constexpr int kOwnInterval = 8;

// `asked`: a kernel that was not measured; its seconds are not read. `measured`: all kernels of a report,
// with its machine and ceilings; `there` and `there_ceilings`: of the GPU that is asked about. Throws
// InvalidArgument where the report has no case of the kernel, or not one block of it fits; ReportError as
// floors_of does.
Prediction predict(const KernelCase& asked, const Multiprocessors& there,
                   const std::vector<Ceiling>& there_ceilings, const std::vector<KernelCase>& measured,
                   const Multiprocessors& machine, const std::vector<Ceiling>& ceilings);

// Time measured / time predicted of each case that has others of its kernel on other problems, in the
// report's order.
std::vector<double> held_out_ratios(const std::vector<KernelCase>& measured, const Multiprocessors& machine,
                                    const std::vector<Ceiling>& ceilings);

}  // namespace splash::analysis
