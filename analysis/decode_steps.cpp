#include "analysis/decode_steps.h"

#include <cmath>

#include <fmt/format.h>

#include "analysis/named_columns.h"

namespace splash::analysis {

bool holds_decode_steps(const report::Report& report) {
  return report.find("keys_screened") != nullptr;
}

std::vector<KernelCase> decode_steps(const report::Report& report) {
  const NamedColumns table(report);
  std::vector<KernelCase> steps;
  for (int64_t row = 0; row < report.cases(); ++row) {
    if (std::isnan(table.number("time_median", row)) || std::isnan(table.number("keys_screened", row)))
      continue;
    const auto whole = [&](const char* name) { return table.count(name, row); };
    KernelCase step;
    step.row = row;
    step.case_id = table.text("case_id", row);
    step.implementation = table.text("implementation", row);
    step.shape = {whole("batch"), whole("q_heads"), whole("kv_heads"),
                  whole("q_len"), whole("kv_len"),  whole("head_dim")};
    step.shape.validate();
    step.dtype = dtype_from_string(table.text("dtype", row));
    step.setting = fmt::format("{}, d {}, alpha {:g}", table.text("dtype", row), step.shape.head_dim,
                               table.number("alpha", row));
    step.problem = fmt::format("{}, {}, alpha {:g}", table.text("dtype", row), to_string(step.shape),
                               table.number("alpha", row));
    step.seconds = table.number("time_median", row);
    step.flops = step.useful_flops = step.l2_bytes = report::kMissing;
    step.dram_bytes = table.number("dram_bytes_counted", row);
    count_tensors(step);
    step.use.blocks = 0;
    step.launches = table.small_count("launches", row);
    step.replayed = true;
    steps.push_back(std::move(step));
  }
  return steps;
}

}  // namespace splash::analysis
