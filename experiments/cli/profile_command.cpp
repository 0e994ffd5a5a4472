#include "experiments/cli/profile_command.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "analysis/counters.h"
#include "analysis/decode_steps.h"
#include "core/text.h"
#include "experiments/cli/command.h"

namespace splash::cli {
namespace {

// "" where it has no effect on the case.
std::string parameter(const report::Report& report, int64_t row, const char* name) {
  const report::Column* column = report.find(name);
  if (column == nullptr || column->width != 1)
    throw ReportError(fmt::format("there is no column '{}' to profile the case again from", name));
  const auto at = static_cast<std::size_t>(row);
  if (column->info.is_text) return column->texts[at];
  return std::isnan(column->numbers[at]) ? "" : fmt::format("{}", column->numbers[at]);
}

void add_selection(const auto& get, const auto& add) {
  const std::string selection = get("selection");
  if (selection == "all") return;
  add("--selection", "selection");
  add("--block", "block");
  selection == "shared_keys" ? add("--share", "share") : add("--k-keep", "k_keep");
}

}  // namespace

std::string table_of(const analysis::KernelCase& kernel) {
  std::string name = fmt::format("{}-{}.csv", kernel.implementation, kernel.case_id);
  std::replace(name.begin(), name.end(), '/', '-');
  return name;
}

std::string captured_input(const report::Report& report, const analysis::KernelCase& kernel) {
  if (report.find("input") == nullptr) return "";  // of kinds that make their own
  const std::string input = parameter(report, kernel.row, "input");
  return input == "gaussian" ? "" : input;
}

std::string profile_command(const report::Report& report, const analysis::KernelCase& kernel) {
  if (const std::string input = captured_input(report, kernel); !input.empty()) {
    throw InvalidArgument(
        fmt::format("case {} takes q, k and v of {}; gpu_bench makes Gaussian ones, so its counters would be "
                    "of another problem",
                    kernel.case_id, one_line(input)));
  }
  const auto get = [&](const char* name) { return parameter(report, kernel.row, name); };
  const bool decodes = analysis::holds_decode_steps(report);
  Words bench{"build/release/bin/gpu_bench", "--profile", "--shape",
              fmt::format("{},{},{},{},{},{}", get("batch"), get("q_heads"), get("kv_heads"), get("q_len"),
                          get("kv_len"), get("head_dim"))};
  const auto add = [&](const char* option, const char* column) {
    if (const std::string value = get(column); !value.empty()) bench.insert(bench.end(), {option, value});
  };
  add("--dtype", "dtype");
  if (decodes) {
    add("--decode", "bits");
    add("--page-size", "page_size");
    add("--alpha", "alpha");
  } else {
    add("--variants", "implementation");
    add("--normalizer", "normalizer");
    if (get("normalizer") != "softmax") add("--alpha", "alpha");
    add_selection(get, add);
    if (const std::string mask = get("mask"); mask == "window") {
      add("--window", "window");
    } else if (mask != "none") {
      bench.push_back("--" + mask);
    }
  }
  add("--query-variance", "query_variance");
  add("--seed", "seed");

  // ncu flushes L2 before every pass by default. That fits, as declarations count the cost of a cold cache.
  return fmt::format(
      "ncu --profile-from-start off --cache-control all --clock-control none --csv --page raw --print-units "
      "base --log-file {} --metrics {} {}\n",
      quoted({table_of(kernel)}), fmt::join(analysis::metrics_to_collect(), ","), quoted(bench));
}

}  // namespace splash::cli
