#include "experiments/kinds/support/gpu_attention_columns.h"

#include <algorithm>

#include "analysis/cache/simulated.h"
#include "analysis/launches.h"
#include "experiments/kinds/support/timing.h"

namespace splash::experiments {
namespace {

using report::ColumnInfo;

constexpr const char* kNotRun = "the case was not run (column version says why)";
constexpr const char* kOursOnly =
    "known for this project's variants only, and of calls with backward only where no row can be left to "
    "dense "
    "products, and neither registers nor simulated caches";

ColumnInfo measured(const char* name, const char* units, const char* long_name, const char* formula) {
  return {.name = name,
          .units = units,
          .long_name = long_name,
          .formula = formula,
          .reproducible = false,
          .missing_reason = kNotRun};
}

// A column that follows from the declaration, the problem and the compiler.
ColumnInfo counted(const char* name, const char* units, const char* long_name, const char* formula) {
  return {
      .name = name, .units = units, .long_name = long_name, .formula = formula, .missing_reason = kOursOnly};
}

ColumnInfo text(const char* name, const char* long_name, const char* formula, bool reproducible) {
  return {.name = name,
          .units = "text",
          .long_name = long_name,
          .formula = formula,
          .is_text = true,
          .reproducible = reproducible,
          .missing_reason = kOursOnly};
}

ColumnInfo with_reason(ColumnInfo info, const char* reason) {
  info.missing_reason = reason;
  return info;
}

}  // namespace

ColumnInfo floor_column() {
  return with_reason(
      measured("floor_time", "s", "least time of the work as executed on this device",
               "max of executed_flops / measured rate of math_unit for dtype, l2_bytes_counted / "
               "measured L2 bandwidth, dram_bytes_counted / measured DRAM bandwidth; bytes that take "
               "more than 1.05 time_median are left out: a cache above serves a part of them"),
      kOursOnly);
}

std::vector<ColumnInfo> gpu_attention_columns() {
  std::vector<ColumnInfo> columns = time_columns(kNotRun);
  const auto append = [&](const std::vector<ColumnInfo>& more) {
    columns.insert(columns.end(), more.begin(), more.end());
  };
  append({
      measured("dense_equivalent_flops", "FLOP", "work of dense attention on the visible pairs",
               "4 d a pair; with backward 14 d, 3.5 times as much: five products more"),
      measured("dense_equivalent_rate", "FLOP/s",
               "dense work over the time; not work done, where keys are skipped",
               "dense_equivalent_flops / time_median"),
      counted("useful_flops", "FLOP", "work on the pairs that are visible and selected",
              "4 d a pair; with backward also 8 d a pair of the recorded support"),
      counted("executed_flops", "FLOP", "work of the products as they run",
              "the variant's trace: padding, masked halves of tiles and repeated products included; with "
              "backward also 8 d a pair of the recorded support, support_mean rows times"),
      with_reason(measured("executed_rate", "FLOP/s", "work of the products over the time",
                           "executed_flops / time_median"),
                  kOursOnly),
      counted(
          "dram_bytes_counted", "bytes", "bytes that DRAM must deliver",
          "counted by the variant's trace: each byte of the tensors that is touched, once; of a workspace "
          "that L2 does not hold, twice"),
      counted("l2_bytes_counted", "bytes", "bytes that all blocks ask for",
              "counted by the variant's trace, as if L1 held nothing"),
      with_reason(counted("exponentials", "1", "results of the special function units",
                          "the variant's trace: a score as executed, and a thread that corrects a sum; "
                          "entmax of alpha 1.5 "
                          "and 2 has none, the power normalizer 2 a selected pair at most"),
                  "not counted of entmax of other alphas, nor of peers"),
      floor_column(),
      with_reason(measured("roof_share", "1", "share of the roof", "floor_time / time_median"), kOursOnly),
      measured("peak_memory_bytes", "bytes",
               "device memory beyond q, k, v and d_out at the peak of one call, results included",
               "of the memory pool, or of PyTorch's allocator"),
      measured("mse", "1", "error of the output",
               "mean (out - ref)^2, ref: float64 oracle, checked_rows queries"),
      measured("nmse", "1", "error of the output, relative",
               "||out - ref||^2 / ||ref||^2, checked_rows queries"),
      measured("max_error", "1", "largest error of the output", "max |out - ref|, checked_rows queries"),
      with_reason(measured("d_q_nmse", "1", "error of dQ, relative",
                           "||dQ - ref||^2 / ||ref||^2, ref: float64 oracle, checked_rows queries"),
                  "the case is forward alone, or was not run"),
      with_reason(measured("support_mean", "1", "keys with p > 0 a query row", "entries stored / rows"),
                  "known for this project's entmax variants only"),
      with_reason(measured("block_sparsity_64", "1", "share of visible 64 x 64 tiles that are wholly 0",
                           "1 - tiles with an entry / visible tiles"),
                  "known for this project's entmax variants, and up to 2^28 entries, only"),
      with_reason(measured("mse_vs_softmax", "1", "difference from dense softmax attention",
                           "mean (out - softmax attention)^2, float64, checked_rows queries"),
                  "the case is dense softmax attention itself, or was not run"),
      counted("predicted_low", "1", "gain that the source document promised, lower end",
              "time of predicted_over / time of this"),
      counted("predicted_high", "1", "gain that the source document promised, upper end",
              "time of predicted_over / time of this"),
      counted("tile_q", "1", "queries that a block works on at a time", "declared"),
      counted("tile_k", "1", "keys that a block works on at a time", "declared"),
      counted("stages", "1", "tiles of K and V in flight", "declared"),
      counted("instruction_q", "1", "queries of the instruction that multiplies",
              "declared: 64 of wgmma, 16 of mma.sync, 1 without"),
      counted("launches", "1", "kernels a call", "declared"),
      counted("blocks", "1", "blocks of the largest kernel", "declared"),
      counted("threads", "1", "threads a block of the largest kernel", "declared"),
      counted("registers", "1", "registers a thread of the largest kernel", "as the compiler says"),
      counted("local_bytes", "bytes", "local memory a thread of the largest kernel: spills",
              "as the compiler says"),
      counted("shared_bytes", "bytes", "shared memory a block of the largest kernel", "static and dynamic"),
      counted("blocks_per_multiprocessor", "1", "blocks of the largest kernel that are resident at once",
              "CUDA's occupancy calculator"),
      text("kernel", "largest kernel", "the one with the most threads", true),
      analysis::launches_column(),
      text("math_unit", "unit whose rate bounds the products", "declared", true),
      text("idea", "what is new in this rung", "declared", true),
      text("finding", "why it gains what it gains", "declared, after measuring", true),
      text("predicted_over", "the rung that the prediction compares with", "declared", true),
  });
  append(clock_columns(kOursOnly));
  append(run_columns());
  // The place after the counted columns.
  const auto place = std::find_if(columns.begin(), columns.end(),
                                  [](const ColumnInfo& info) { return info.name == "l2_bytes_counted"; });
  std::vector<ColumnInfo> simulated;
  for (const analysis::SimulatedColumn& column : analysis::simulated_columns())
    simulated.push_back(column.info);
  columns.insert(place + 1, simulated.begin(), simulated.end());
  return columns;
}

}  // namespace splash::experiments
