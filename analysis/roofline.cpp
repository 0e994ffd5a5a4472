#include "analysis/roofline.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "core/dtype.h"
#include "core/error.h"

namespace splash::analysis {
namespace {

// The columns of a report, by name and row.
class Table {
 public:
  explicit Table(const Report& report) : report_(report) {}

  const std::string& text(const char* name, int64_t row) const {
    return column(name, true).texts[static_cast<std::size_t>(row)];
  }
  double number(const char* name, int64_t row) const {
    return column(name, false).numbers[static_cast<std::size_t>(row)];
  }

 private:
  const Column& column(const char* name, bool is_text) const {
    const Column* found = report_.find(name);
    if (found == nullptr || found->info.is_text != is_text || found->width != 1) {
      throw ReportError(fmt::format(
          "there is no column '{}': the report holds no cases of the kind gpu-attention to analyse", name));
    }
    return *found;
  }

  const Report& report_;
};

// What is not the usual is said: a mask, another normalizer than softmax, a selection, a graph, a cold cache.
std::string problem_of(const Table& table, int64_t row) {
  const auto number = [&](const char* name) { return static_cast<int64_t>(table.number(name, row)); };
  std::string text = fmt::format(
      "{}, {} x {}{} heads, {} x {}, d {}", table.text("dtype", row), number("batch"), number("q_heads"),
      number("kv_heads") == number("q_heads") ? "" : fmt::format("/{}", number("kv_heads")), number("q_len"),
      number("kv_len"), number("head_dim"));
  const auto add = [&](const char* column, const char* usual) {
    if (const std::string& value = table.text(column, row); value != usual) text += ", " + value;
  };
  add("mask", "none");
  add("normalizer", "softmax");
  add("selection", "all");
  const std::string& selection = table.text("selection", row);
  if (selection.starts_with("top_k")) text += fmt::format(" {}", number("k_keep"));
  if (selection == "shared_keys") text += fmt::format(" {:g} %", 100 * table.number("share", row));
  add("method", "events");
  add("cache", "warm");
  return text;
}

double measured(const std::vector<Ceiling>& ceilings, const std::string& name, const std::string& dtype) {
  for (const Ceiling& ceiling : ceilings) {
    if (ceiling.name == name && ceiling.dtype == dtype) return ceiling.measured;
  }
  throw ReportError(
      fmt::format("the report has no ceiling '{}'{}", name, dtype.empty() ? "" : " in " + dtype));
}

}  // namespace

const char* to_string(Level level) {
  switch (level) {
    case Level::products:
      return "products";
    case Level::l2:
      return "L2";
    case Level::dram:
      return "DRAM";
  }
  return "";
}

double Floors::highest() const {
  return std::max({products, l2, dram});
}

Level Floors::level() const {
  return products >= std::max(l2, dram) ? Level::products : l2 >= dram ? Level::l2 : Level::dram;
}

void count_tensors(KernelCase& kernel) {
  const AttentionShape& shape = kernel.shape;
  const auto row_bytes = static_cast<double>(bytes_of(kernel.dtype) * shape.head_dim);
  kernel.output_bytes = row_bytes * static_cast<double>(shape.rows());
  kernel.input_bytes =
      kernel.output_bytes + 2 * row_bytes * static_cast<double>(shape.batch * shape.kv_heads * shape.kv_len);
}

std::vector<KernelCase> kernel_cases(const Report& report) {
  const Table table(report);
  std::vector<KernelCase> cases;
  for (int64_t row = 0; row < report.cases(); ++row) {
    const auto number = [&](const char* name) { return table.number(name, row); };
    // Not run, or a peer, or a case of two passes, of which nothing is counted.
    if (std::isnan(number("time_median")) || std::isnan(number("executed_flops"))) continue;
    KernelCase found;
    found.row = row;
    found.case_id = table.text("case_id", row);
    found.implementation = table.text("implementation", row);
    found.problem = problem_of(table, row);
    const auto whole = [&](const char* name) { return static_cast<int64_t>(number(name)); };
    found.shape = {whole("batch"), whole("q_heads"), whole("kv_heads"),
                   whole("q_len"), whole("kv_len"),  whole("head_dim")};
    found.dtype = dtype_from_string(table.text("dtype", row));
    found.causal = table.text("mask", row) == "causal";
    found.tile_q = whole("tile_q");
    found.tile_k = whole("tile_k");
    found.stages = static_cast<int>(number("stages"));
    found.seconds = number("time_median");
    found.flops = number("executed_flops");
    found.useful_flops = number("useful_flops");
    count_tensors(found);
    found.kernel = table.text("kernel", row);
    found.dram_bytes = number("dram_bytes_counted");
    found.l2_bytes = number("l2_bytes_counted");
    found.unit = table.text("math_unit", row);
    // Both 16-bit types run on one unit, declared as float16, at rates of their own.
    if (found.unit == "float16") found.unit = table.text("dtype", row) == "float16" ? "float16" : "bfloat16";
    found.launches = static_cast<int>(number("launches"));
    found.replayed = table.text("method", row) == "graph";
    found.use = {.blocks = static_cast<int64_t>(number("blocks")),
                 .threads = static_cast<int>(number("threads")),
                 .registers = static_cast<int>(number("registers")),
                 .shared_bytes = static_cast<int64_t>(number("shared_bytes"))};
    found.resident_blocks = static_cast<int>(number("blocks_per_multiprocessor"));
    cases.push_back(std::move(found));
  }
  return cases;
}

Floors floors_of(const KernelCase& kernel, const std::vector<Ceiling>& ceilings) {
  const double dram = std::max(measured(ceilings, "dram copy", ""), measured(ceilings, "dram read", ""));
  return {
      .products = kernel.flops / measured(ceilings, kernel.unit == "float32" ? "fma" : "tensor", kernel.unit),
      .l2 = kernel.l2_bytes / measured(ceilings, "l2 read", ""),
      .dram = kernel.dram_bytes / dram};
}

double launch_seconds(const KernelCase& kernel, const std::vector<Ceiling>& ceilings) {
  const double node = measured(ceilings, "graph node", "");
  return (kernel.replayed ? node : measured(ceilings, "launch", "")) + (kernel.launches - 1) * node;
}

}  // namespace splash::analysis
