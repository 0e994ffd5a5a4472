#include "analysis/what_if.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "analysis/changes.h"
#include "analysis/launches.h"
#include "analysis/statistics.h"
#include "core/error.h"

namespace splash::analysis {
namespace {

// Work that follows from the inputs, which no declaration counts: keys and values of the support are read
// once more, through L2; or, where that takes longer, all visible pairs are computed once more.
double seconds_of_support(const KernelCase& kernel, const Floors& floors) {
  if (std::isnan(kernel.support) || !(floors.l2 > 0) || !(floors.products > 0)) return 0;
  const AttentionShape& shape = kernel.shape;
  const double rows = static_cast<double>(shape.batch * shape.q_heads * shape.q_len);
  const double bytes =
      rows * kernel.support * 2 * static_cast<double>(shape.head_dim * bytes_of(kernel.dtype));
  return std::min(bytes * floors.l2 / kernel.l2_bytes,
                  kernel.useful_flops * floors.products / kernel.flops + floors.l2);
}

ModelPoint point_of(const KernelCase& kernel, const MeasuredGpu& gpu) {
  const Occupancy occupancy = occupancy_of(gpu.machine, kernel.use);
  if (occupancy.blocks < 1) {
    throw InvalidArgument(fmt::format("not one block of {} fits a multiprocessor: {} bounds it",
                                      kernel.implementation, to_string(occupancy.limit)));
  }
  const Floors floors = floors_of(kernel, gpu.ceilings);
  return {.kernel = kernel,
          .launch = launch_seconds(kernel, gpu.ceilings),
          .base = (floors.sum() + seconds_of_support(kernel, floors)) / occupancy.wave_yield,
          .floor = floors.highest()};
}

// Whether anything of a profiled kernel is counted against a known ceiling.
bool is_modelled(const KernelCase& kernel, const MeasuredGpu& gpu) {
  return occupancy_of(gpu.machine, kernel.use).blocks > 0 && floors_of(kernel, gpu.ceilings).sum() > 0;
}

double factor_of(const ModelPoint& measured) {
  return seconds_behind_launch(measured.kernel, measured.launch) / measured.base;
}

bool same_problem(const KernelCase& a, const KernelCase& b) {
  if (a.profiled) return a.case_id == b.case_id;
  return a.shape == b.shape && a.dtype == b.dtype && a.causal == b.causal && a.window == b.window &&
         a.flops == b.flops;
}

// The nearest measured case of the same kernel; of the same unit if there is one. held_out: on another
// problem.
const ModelPoint* nearest(const ModelPoint& asked, const std::vector<ModelPoint>& measured, bool held_out) {
  const ModelPoint* best = nullptr;
  double least = std::numeric_limits<double>::infinity();
  for (const ModelPoint& point : measured) {
    if (point.kernel.implementation != asked.kernel.implementation) continue;
    if (held_out && same_problem(point.kernel, asked.kernel)) continue;
    const auto ratio = [](auto a, auto b) {
      return std::abs(std::log(static_cast<double>(a) / static_cast<double>(b)));
    };
    double distance = ratio(point.base, asked.base) +
                      ratio(point.kernel.shape.head_dim, asked.kernel.shape.head_dim) +
                      ratio(point.kernel.use.blocks, asked.kernel.use.blocks);
    if (const double support = ratio(point.kernel.support, asked.kernel.support); !std::isnan(support))
      distance += support;
    if (point.kernel.unit != asked.kernel.unit) distance += 100;
    if (point.kernel.replayed != asked.kernel.replayed) distance += 1e-3;  // where both are as near
    if (distance < least) {
      least = distance;
      best = &point;
    }
  }
  return best;
}

double predicted(const ModelPoint& asked, const ModelPoint& from) {
  // Caches above the busiest level may serve a part of the counted bytes.
  const double served = std::min(1.0, factor_of(from) * from.base / from.floor);
  return asked.launch + std::max(factor_of(from) * asked.base, served * asked.floor);
}

bool of_less_work(const KernelCase& less, const KernelCase& more) {
  const auto cold = [](const KernelCase& kernel) { return kernel.setting.find("cold") != std::string::npos; };
  if (cold(less) && !cold(more)) return false;
  const AttentionShape &a = less.shape, &b = more.shape;
  const int64_t fewer = a.batch * a.q_heads, all = b.batch * b.q_heads;
  if (fewer > all || (fewer == all && !(less.support < more.support))) return false;
  return less.implementation == more.implementation && less.dtype == more.dtype &&
         less.causal == more.causal && less.window == more.window && less.unit == more.unit &&
         a.head_dim == b.head_dim && a.group() == b.group() && a.batch <= b.batch && a.q_heads <= b.q_heads &&
         a.q_len == b.q_len && a.kv_len == b.kv_len && less.flops <= more.flops &&
         less.l2_bytes <= more.l2_bytes && less.dram_bytes <= more.dram_bytes &&
         !(less.support > more.support);
}

constexpr int64_t kMostEntries = 1024;  // batch sizes up to this are tried one by one

// Predicts the time with other tiles. The floors of all levels follow the cut. The rest of the time, spent
// inside the multiprocessors, follows the products. Both grow if multiprocessors are idle.
double recut_seconds(const KernelCase& uncut, const KernelCase& cut, double uncut_seconds,
                     const MeasuredGpu& gpu) {
  const auto sum = [&](const KernelCase& kernel) { return floors_of(kernel, gpu.ceilings).sum(); };
  const double launch = launch_seconds(uncut, gpu.ceilings), behind = uncut_seconds - launch;
  const double before = busy_share(uncut.use, gpu.machine), after = busy_share(cut.use, gpu.machine);
  const double rest = std::max(0.0, behind * before - sum(uncut));
  const double scale = rest > 0 ? 1 : behind * before / sum(uncut);
  return launch_seconds(cut, gpu.ceilings) + (scale * sum(cut) + rest * cut.flops / uncut.flops) / after;
}

// Neighbouring rungs with other tiles, the same number of stages, and as many threads or threads in
// proportion.
bool are_cuts_of_one_idea(const KernelCase& a, const KernelCase& b) {
  return are_neighbouring_rungs(a, b) && a.problem == b.problem && a.unit == b.unit && a.stages == b.stages &&
         (a.tile_q != b.tile_q || a.tile_k != b.tile_k) &&
         (a.use.threads == b.use.threads || a.use.threads * b.tile_q == b.use.threads * a.tile_q) &&
         (a.tile_q != b.tile_q || a.use.threads == b.use.threads);
}

}  // namespace

Prediction as_measured(const KernelCase& measured, const MeasuredGpu& gpu) {
  const auto known = [&](double end) { return std::isnan(end) ? measured.seconds : end; };
  return {.seconds = measured.seconds,
          .low = known(measured.seconds_low),
          .high = known(measured.seconds_high),
          .factor = factor_of(point_of(measured, gpu)),
          .from = measured.case_id,
          .held_out = 0,
          .measured = true};
}

Predictor::Predictor(const std::vector<KernelCase>& measured, MeasuredGpu gpu) : gpu_(std::move(gpu)) {
  for (const KernelCase& kernel : measured) {
    if (!kernel.profiled || is_modelled(kernel, gpu_)) points_.push_back(point_of(kernel, gpu_));
  }
  for (const ModelPoint& point : points_) {
    if (const ModelPoint* from = nearest(point, points_, true)) {
      const double seconds = std::max(predicted(point, *from), at_least(point, gpu_, true));
      held_out_.push_back({point.kernel.implementation, point.kernel.seconds / seconds});
    }
  }
  compare_cuts();
}

void Predictor::compare_cuts() {
  for (const ModelPoint& a : points_) {
    if (!why_not_cut(a.kernel).empty()) continue;
    for (const ModelPoint& b : points_) {
      if (!are_cuts_of_one_idea(a.kernel, b.kernel) || !why_not_cut(b.kernel).empty()) continue;
      const KernelCase cut = changed(a.kernel, {.tile_q = b.kernel.tile_q, .tile_k = b.kernel.tile_k});
      if (occupancy_of(gpu_.machine, cut.use).blocks < 1) continue;
      recut_.push_back(b.kernel.seconds / recut_seconds(a.kernel, cut, a.kernel.seconds, gpu_));
    }
  }
}

std::vector<double> Predictor::ratios_of(const std::string& implementation) const {
  std::vector<double> ratios;
  for (const Ratio& ratio : held_out_) {
    if (ratio.implementation == implementation) ratios.push_back(ratio.value);
  }
  return ratios.size() < kOwnInterval ? held_out_ratios() : ratios;
}

std::vector<double> Predictor::held_out_ratios() const {
  std::vector<double> ratios;
  for (const Ratio& ratio : held_out_) ratios.push_back(ratio.value);
  return ratios;
}

void Predictor::add_interval(Prediction& prediction, std::vector<double> ratios) {
  prediction.held_out = static_cast<int>(ratios.size());
  prediction.low = ratios.empty() ? 0 : prediction.seconds * quantile(ratios, 0.1);
  prediction.high =
      ratios.empty() ? std::numeric_limits<double>::infinity() : prediction.seconds * quantile(ratios, 0.9);
}

// A lower bound: the time that less of the same work was measured to take, launched as `asked` is, or is
// predicted to take.
double Predictor::at_least(const ModelPoint& asked, const MeasuredGpu& there, bool held_out) const {
  double least = 0;
  if (&there == &gpu_) {
    for (const ModelPoint& point : points_) {
      if (held_out && same_problem(point.kernel, asked.kernel)) continue;
      if (of_less_work(point.kernel, asked.kernel))
        least = std::max(least, point.kernel.seconds - point.launch + asked.launch);
    }
  }
  const int64_t batch = asked.kernel.shape.batch;
  const auto longer = [&](int64_t entries) {
    const ModelPoint fewer = point_of(with_batch(asked.kernel, entries), there);
    if (const ModelPoint* from = nearest(fewer, points_, held_out))
      least = std::max(least, predicted(fewer, *from));
  };
  for (int64_t entries = 1; entries < std::min(batch, kMostEntries); ++entries) longer(entries);
  return least;
}

std::optional<Prediction> Predictor::held_out(const KernelCase& measured) const {
  const ModelPoint point = point_of(measured, gpu_);
  const ModelPoint* from = nearest(point, points_, true);
  if (from == nullptr) return std::nullopt;
  Prediction prediction{.seconds = std::max(predicted(point, *from), at_least(point, gpu_, true)),
                        .factor = factor_of(*from),
                        .from = from->kernel.case_id};
  add_interval(prediction, ratios_of(measured.implementation));
  return prediction;
}

Prediction Predictor::predict(const KernelCase& asked, const MeasuredGpu& there,
                              const KernelCase* uncut) const {
  const ModelPoint point = point_of(asked, there);
  const ModelPoint* from = nearest(uncut == nullptr ? point : point_of(*uncut, there), points_, false);
  if (from == nullptr)
    throw InvalidArgument(fmt::format("the report has no case of {} to predict from", asked.implementation));
  Prediction prediction;
  prediction.factor = factor_of(*from);
  prediction.from = from->kernel.case_id;
  const ModelPoint whole = uncut == nullptr ? point : point_of(*uncut, there);
  const double seconds = std::max(predicted(whole, *from), at_least(whole, there, false));
  prediction.seconds = uncut == nullptr ? seconds : recut_seconds(*uncut, asked, seconds, there);
  std::vector<double> ratios = ratios_of(asked.implementation);
  if (uncut != nullptr && !recut_.empty()) {
    const bool measured_before = same_problem(*uncut, from->kernel) && &there == &gpu_;
    if (measured_before) ratios.clear();
    ratios.insert(ratios.end(), recut_.begin(), recut_.end());
  }
  add_interval(prediction, std::move(ratios));
  return prediction;
}

}  // namespace splash::analysis
