#include "analysis/what_if.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "core/error.h"

namespace splash::analysis {
namespace {

// A measured case, or one that is asked about, as the model sees it.
struct Point {
  const KernelCase* kernel = nullptr;
  double launch = 0, base = 0;  // seconds
};

Point point_of(const KernelCase& kernel, const Multiprocessors& machine,
               const std::vector<Ceiling>& ceilings) {
  const Occupancy occupancy = occupancy_of(machine, kernel.use);
  if (occupancy.blocks < 1) {
    throw InvalidArgument(fmt::format("not one block of {} fits a multiprocessor: {} bounds it",
                                      kernel.implementation, to_string(occupancy.limit)));
  }
  const Floors floors = floors_of(kernel, ceilings);
  return {.kernel = &kernel,
          .launch = launch_seconds(kernel, ceilings),
          .base = (floors.products + floors.l2 + floors.dram) / occupancy.wave_yield};
}

std::vector<Point> points_of(const std::vector<KernelCase>& kernels, const Multiprocessors& machine,
                             const std::vector<Ceiling>& ceilings) {
  std::vector<Point> points;
  for (const KernelCase& kernel : kernels) points.push_back(point_of(kernel, machine, ceilings));
  return points;
}

double factor_of(const Point& measured) {
  // Where launches take it all, what is behind them cannot be told; a hundredth of the time is a guess.
  const double seconds = measured.kernel->seconds;
  return std::max(seconds - measured.launch, 0.01 * seconds) / measured.base;
}

bool same_problem(const KernelCase& a, const KernelCase& b) {
  return a.shape == b.shape && a.dtype == b.dtype && a.causal == b.causal && a.flops == b.flops;
}

// Of the same kernel, on another problem where one is held out, and of the same unit where there is one.
const Point* nearest(const Point& asked, const std::vector<Point>& measured, bool held_out) {
  const Point* best = nullptr;
  double least = std::numeric_limits<double>::infinity();
  for (const Point& point : measured) {
    if (point.kernel->implementation != asked.kernel->implementation) continue;
    if (held_out && same_problem(*point.kernel, *asked.kernel)) continue;
    const auto ratio = [](auto a, auto b) {
      return std::abs(std::log(static_cast<double>(a) / static_cast<double>(b)));
    };
    double distance =
        ratio(point.base, asked.base) + ratio(point.kernel->shape.head_dim, asked.kernel->shape.head_dim);
    if (point.kernel->unit != asked.kernel->unit) distance += 100;
    if (point.kernel->replayed != asked.kernel->replayed) distance += 1e-3;  // where both are as near
    if (distance < least) {
      least = distance;
      best = &point;
    }
  }
  return best;
}

double predicted(const Point& asked, const Point& from) {
  return asked.launch + factor_of(from) * asked.base;
}

// Of sorted values, between neighbours.
double quantile(const std::vector<double>& sorted, double share) {
  const double at = share * static_cast<double>(sorted.size() - 1);
  const auto low = static_cast<std::size_t>(at);
  const std::size_t high = std::min(low + 1, sorted.size() - 1);
  return std::lerp(sorted[low], sorted[high], at - static_cast<double>(low));
}

// kernel: of its cases alone; empty: of all.
std::vector<double> ratios_of(const std::vector<Point>& points, const std::string& kernel) {
  std::vector<double> ratios;
  for (const Point& point : points) {
    if (!kernel.empty() && point.kernel->implementation != kernel) continue;
    if (const Point* from = nearest(point, points, true))
      ratios.push_back(point.kernel->seconds / predicted(point, *from));
  }
  return ratios;
}

}  // namespace

Prediction predict(const KernelCase& asked, const Multiprocessors& there,
                   const std::vector<Ceiling>& there_ceilings, const std::vector<KernelCase>& measured,
                   const Multiprocessors& machine, const std::vector<Ceiling>& ceilings) {
  const Point point = point_of(asked, there, there_ceilings);
  const std::vector<Point> points = points_of(measured, machine, ceilings);
  const Point* from = nearest(point, points, false);
  if (from == nullptr)
    throw InvalidArgument(fmt::format("the report has no case of {} to predict from", asked.implementation));
  Prediction prediction;
  prediction.factor = factor_of(*from);
  prediction.from = from->kernel->case_id;
  prediction.seconds = predicted(point, *from);
  std::vector<double> ratios = ratios_of(points, asked.implementation);
  if (ratios.size() < kOwnInterval) ratios = ratios_of(points, "");
  std::sort(ratios.begin(), ratios.end());
  prediction.held_out = static_cast<int>(ratios.size());
  if (ratios.empty()) {
    prediction.low = 0;
    prediction.high = std::numeric_limits<double>::infinity();
  } else {
    prediction.low = prediction.seconds * quantile(ratios, 0.1);
    prediction.high = prediction.seconds * quantile(ratios, 0.9);
  }
  return prediction;
}

std::vector<double> held_out_ratios(const std::vector<KernelCase>& measured, const Multiprocessors& machine,
                                    const std::vector<Ceiling>& ceilings) {
  return ratios_of(points_of(measured, machine, ceilings), "");
}

}  // namespace splash::analysis
