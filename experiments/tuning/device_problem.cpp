#include "experiments/tuning/device_problem.h"

#include <utility>

#include <fmt/format.h>

#include "experiments/kinds/support/gpu_problem.h"
#include "experiments/kinds/support/timing.h"
#include "gpu/benchmark/timing.h"

namespace splash::experiments {
namespace {

Workload tuned_workload(const TuneRequest& request) {
  Workload workload = request.workload;
  workload.seed = static_cast<uint64_t>(get_integer(request.problem, "seed"));
  workload.query_variance = get_number(request.problem, "query_variance");
  workload.validate();
  return workload;
}

std::string workload_words(const Workload& workload) {
  const std::string kind(to_string(workload.kind));
  const bool has_variance = workload.kind == WorkloadKind::gaussian ||
                            workload.kind == WorkloadKind::clustered || workload.kind == WorkloadKind::local;
  return has_variance
             ? fmt::format("{}, variance {:.6g}, seed {}", kind, workload.query_variance, workload.seed)
             : fmt::format("{}, seed {}", kind, workload.seed);
}

}  // namespace

DeviceProblem::DeviceProblem(const TuneRequest& request)
    : spec(problem_spec(request.problem)),
      dtype(problem_dtype(request.problem)),
      inputs(workload_words(tuned_workload(request))),
      device(gpu::list_devices().at(static_cast<std::size_t>(stream.device()))),
      host(make_inputs<float>(tuned_workload(request), spec.shape)),
      q(gpu::DeviceTensor::from(stream, dtype, host.q)),
      k(gpu::DeviceTensor::from(stream, dtype, host.k)),
      v(gpu::DeviceTensor::from(stream, dtype, host.v)),
      out(stream, dtype, q.view().extents) {
  stream.synchronize();
}

std::function<double()> DeviceProblem::timed(std::function<void()> call) const {
  return [this, call = std::move(call)] {
    const gpu::Timing timing = gpu::time_on_device(call, stream, {.samples = 3, .warm_up_seconds = 0});
    return analysis::median(timing.seconds);
  };
}

SearchLimits DeviceProblem::limits(double budget_seconds) const {
  return {.budget_seconds = budget_seconds, .now = seconds_now};
}

}  // namespace splash::experiments
