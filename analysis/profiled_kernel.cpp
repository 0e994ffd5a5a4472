#include "analysis/profiled_kernel.h"

#include <algorithm>
#include <cmath>
#include <iterator>

namespace splash::analysis {
namespace {

struct Capability {
  int number, warps, blocks, shared_kilobytes;
  int exponentials;  // 0: not known
};
constexpr int kEveryRegisters = 65536;
constexpr Capability kCapabilities[] = {
    {70, 64, 32, 96, 16},  {75, 32, 16, 64, 16},  {80, 64, 32, 164, 16}, {86, 48, 16, 100, 16},
    {87, 48, 16, 164, 16}, {89, 48, 24, 100, 16}, {90, 64, 32, 228, 16}, {100, 64, 32, 228, 0},
    {103, 64, 32, 228, 0}, {120, 48, 24, 100, 0}, {121, 48, 24, 100, 0},
};

}  // namespace

bool is_profiled(const NamedColumns& table, int64_t row) {
  const std::string method = table.known_text("method", row);
  return method == kProfilerMethod ||
         (method == kBenchMethod && !table.known_text("math_unit", row).starts_with(kCpuUnit));
}

KernelCase profiled_kernel(const NamedColumns& table, int64_t row) {
  const auto known = [&](const char* name) { return table.known_number(name, row); };
  KernelCase found;
  found.profiled = true;
  found.benched = table.known_text("method", row) == kBenchMethod;
  found.row = row;
  found.case_id = table.text("case_id", row);
  found.implementation = table.text("implementation", row);
  found.problem = table.text("problem", row);
  found.kernel = table.text("kernel", row);
  found.shape = {1, 1, 1, 1, 1, 1};
  found.seconds = table.number("time_median", row);
  found.seconds_low = known("time_low");
  found.seconds_high = known("time_high");
  found.flops = found.useful_flops = table.number("executed_flops", row);
  found.dram_bytes = table.number("dram_bytes_counted", row);
  found.l2_bytes = table.number("l2_bytes_counted", row);
  found.unit = table.text("math_unit", row);
  found.use = {.blocks = table.count("blocks", row),
               .threads = table.small_count("threads", row),
               .registers = table.small_count("registers", row),
               .shared_bytes = table.count("shared_bytes", row)};
  found.clock_hz = known("clock_counter");
  found.instructions = known("instructions_counter");
  found.shared_traffic = kWavefrontBytes * known("shared_wavefronts_counter");
  found.l2_traffic = known("l2_bytes_counter");
  found.dram_traffic = found.benched ? report::kMissing : found.dram_bytes;
  if (found.benched) {
    found.exponentials = known("special_counter");
    found.l2_bytes = known("l1_bytes_counted");
    found.launches = std::max(1, table.small_count("launches", row));
    found.placed = table.count("launches", row) > 0;
  }
  found.seen = {.float32 = known("float32_share_counter"),
                .tensor = known("tensor_share_counter"),
                .special = known("special_share_counter"),
                .l1 = known("l1_share_counter"),
                .l2 = known("l2_share_counter"),
                .dram = known("dram_share_counter"),
                .shared = known("shared_share_counter"),
                .issue = known("issue_share_counter"),
                .multiprocessor = known("multiprocessor_share_counter")};
  found.stalls = parse_stalls(table.known_text(kStallsColumn, row));
  found.bank_conflicts = known("bank_conflicts_counter") / known("shared_wavefronts_counter");
  found.load_bytes = known("load_bytes_per_sector_counter");
  found.store_bytes = known("store_bytes_per_sector_counter");
  found.warning = table.known_text("warning", row);
  return found;
}

std::optional<Multiprocessors> multiprocessors_of(int compute_capability, int count) {
  const auto* const found = std::find_if(std::begin(kCapabilities), std::end(kCapabilities),
                                         [&](const Capability& c) { return c.number == compute_capability; });
  if (found == std::end(kCapabilities) || count < 1) return std::nullopt;
  Multiprocessors made{.count = count,
                       .warps = found->warps,
                       .blocks = found->blocks,
                       .registers = kEveryRegisters,
                       .shared_bytes = int64_t{1024} * found->shared_kilobytes,
                       .exponentials = found->exponentials};
  made.share_as(compute_capability);
  return made;
}

std::optional<Multiprocessors> profiled_multiprocessors(const report::Report& report) {
  const NamedColumns table(report);
  if (report.find("method") == nullptr || report.find("multiprocessors") == nullptr) return std::nullopt;
  for (int64_t row = 0; row < report.cases(); ++row) {
    if (!is_profiled(table, row) || std::isnan(table.known_number("compute_capability", row))) continue;
    const auto found = multiprocessors_of(table.small_count("compute_capability", row),
                                          table.small_count("multiprocessors", row));
    if (found) return found;
  }
  return std::nullopt;
}

}  // namespace splash::analysis
