#include "analysis/cache/simulated.h"

#include <cmath>

namespace splash::analysis {
namespace {

report::ColumnInfo info(const char* name, const char* units, const char* long_name, const char* formula) {
  return {.name = name,
          .units = units,
          .long_name = long_name,
          .formula = formula,
          .missing_reason =
              "not the forward of one of this project's variants, a GPU that data/machines does not "
              "describe, or more accesses than are simulated"};
}

}  // namespace

const std::vector<SimulatedColumn>& simulated_columns() {
  constexpr const char* kL2 = "simulated: the variant's accesses through a sectored L2, empty at first";
  static const std::vector<SimulatedColumn> columns{
      {&SimulatedCase::l1_hit_bytes,
       info("l1_hit_bytes_simulated", "bytes", "bytes that blocks read and L1 held",
            "simulated: the variant's reads through an L1 of what shared memory leaves")},
      {&SimulatedCase::l2_bytes, info("l2_bytes_simulated", "bytes", "bytes asked of L2",
                                      "simulated: asked by blocks, not held by L1")},
      {&SimulatedCase::l2_hit_bytes,
       info("l2_hit_bytes_simulated", "bytes", "bytes asked of L2 and held", kL2)},
      {&SimulatedCase::dram_read_bytes,
       info("dram_read_bytes_simulated", "bytes", "bytes read from DRAM", kL2)},
      {&SimulatedCase::dram_write_bytes,
       info("dram_write_bytes_simulated", "bytes", "bytes written to DRAM while the call runs", kL2)},
      {&SimulatedCase::dram_apart_bytes,
       info("dram_apart_bytes_simulated", "bytes",
            "bytes read from and written to DRAM, were L2 emptied before each kernel of the call",
            "simulated: as Nsight Compute profiles kernels, one by one (--cache-control all)")},
      {&SimulatedCase::block_working_set,
       info("block_working_set", "bytes", "bytes that a block touches, each once",
            "the most of the blocks of a full wave; a cluster is one")},
      {&SimulatedCase::wave_working_set,
       info("wave_working_set", "bytes", "bytes that a full wave of blocks touches, each once",
            "all blocks that are resident at once, of the kernel where that is most")},
      {&SimulatedCase::l2_holds_keys,
       info("l2_holds_keys", "1", "most keys up to which what a full wave reads stays in L2",
            "read bytes of the wave working set <= L2 / its partitions; 0: never")},
  };
  return columns;
}

std::optional<SimulatedCase> simulated_case(const report::Report& report, int64_t row) {
  SimulatedCase found;
  for (const SimulatedColumn& simulated : simulated_columns()) {
    const report::Column* column = report.find(simulated.info.name);
    if (column == nullptr || column->info.is_text || column->width != 1) return std::nullopt;
    found.*simulated.member = column->numbers[static_cast<std::size_t>(row)];
  }
  if (std::isnan(found.l2_bytes)) return std::nullopt;
  return found;
}

}  // namespace splash::analysis
