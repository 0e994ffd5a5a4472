#include "analysis/cache/simulate.h"

#include <algorithm>
#include <bit>
#include <optional>
#include <random>
#include <utility>

#include <fmt/format.h>

#include "core/error.h"
#include "core/touched_bytes.h"

namespace splash::analysis {
namespace {

void require_one(const char* what, int64_t value) {
  if (value < 1) throw InvalidArgument(fmt::format("{} is {}; it must be at least 1", what, value));
}

// Puts operands 64 GB apart, more than any tensor's size.
uint64_t address_of(const BlockTrace::Range& range, int64_t row) {
  return (static_cast<uint64_t>(range.operand) << 36) +
         static_cast<uint64_t>(range.offset + row * range.pitch);
}

// Counts each byte once. There are few enough ranges to sort them.
int64_t distinct_bytes(const BlockTrace& trace) {
  std::vector<std::pair<uint64_t, uint64_t>> ranges;
  for (const BlockTrace::Range& range : trace.ranges()) {
    for (int64_t row = 0; row < range.rows; ++row) {
      const uint64_t begin = address_of(range, row);
      ranges.emplace_back(begin, begin + static_cast<uint64_t>(range.bytes));
    }
  }
  std::sort(ranges.begin(), ranges.end());
  uint64_t bytes = 0, upto = 0;
  for (const auto& [begin, end] : ranges) {
    if (end > upto) bytes += end - std::max(begin, upto);
    upto = std::max(upto, end);
  }
  return static_cast<int64_t>(bytes);
}

// Real blocks do not keep pace, so each block waits in three of ten turns, drawn at random. At the same pace,
// all blocks that read the same keys would share one fetch. With 0.3, kernels whose keys overflow the L2 of
// an H200 read from DRAM what its counters say, to 10 %, except kernels whose reads the data decides
// (docs/decisions/0020-caches-as-the-counters-tell.md).
class Pace {
 public:
  bool waits() { return random_() < kWaits * static_cast<double>(std::minstd_rand::max()); }

 private:
  static constexpr double kWaits = 0.3;
  std::minstd_rand random_{1};
};

class Gpu {
 public:
  // apart: also follow a second L2 that is emptied before each kernel.
  Gpu(int multiprocessors, const L2Size& l2, bool apart)
      : multiprocessors_(multiprocessors), l2_(l2), memory_(l2) {
    if (apart) of_kernel_.emplace(l2);
  }

  void run(const KernelRun& kernel) {
    const KernelTrace& trace = kernel.trace;
    Pace pace;
    l1_.clear();
    if (trace.through_l1 && kernel.l1_bytes >= kLineBytes * Cache::kWays)
      l1_.assign(static_cast<std::size_t>(multiprocessors_), Cache(kernel.l1_bytes));
    std::vector<Piece> pieces(static_cast<std::size_t>(std::min(kernel.at_once, trace.blocks)));
    int64_t next = 0;
    for (Piece& piece : pieces) start(trace, next++, piece);
    if (of_kernel_) of_kernel_.emplace(l2_);
    for (bool working = !pieces.empty(); working;) {
      working = false;
      for (std::size_t slot = 0; slot < pieces.size(); ++slot) {
        Piece& piece = pieces[slot];
        if (piece.step == piece.trace.steps()) {
          if (next >= trace.blocks) continue;  // no block is left for this slot
          start(trace, next++, piece);
        }
        working = true;
        if (pace.waits()) continue;
        const auto place = static_cast<int64_t>(slot) * trace.cluster % multiprocessors_;
        take(piece, static_cast<int>(place));
      }
    }
    if (of_kernel_) dram_apart_ += dram_bytes(*of_kernel_);
  }

  CallTraffic traffic() const {
    CallTraffic traffic = traffic_;
    traffic.memory = memory_.traffic();
    traffic.dram_apart = of_kernel_ ? dram_apart_ : dram_bytes(memory_);
    return traffic;
  }

 private:
  // A running block.
  struct Piece {
    BlockTrace trace;
    std::size_t step = 0;
  };

  static int64_t dram_bytes(const MemorySystem& memory) {
    const MemoryTraffic traffic = memory.traffic();
    return traffic.dram_read + traffic.dram_written;
  }

  static void start(const KernelTrace& kernel, int64_t block, Piece& piece) {
    piece.trace.clear();
    piece.step = 0;
    kernel.run(block, piece.trace);
  }

  void take(Piece& piece, int multiprocessor) {
    const int partition = multiprocessor % l2_.partitions;
    const BlockTrace::Range* const end = piece.trace.end(piece.step);
    for (const auto* range = piece.trace.begin(piece.step); range != end; ++range) {
      for (int64_t row = 0; row < range->rows; ++row) {
        for_each_line(address_of(*range, row), range->bytes, [&](uint64_t line, unsigned sectors) {
          ask(multiprocessor, partition, line, sectors, range->write);
        });
      }
    }
    ++piece.step;
  }

  void ask(int multiprocessor, int partition, uint64_t line, unsigned sectors, bool write) {
    ++traffic_.lines;
    traffic_.asked += kSectorBytes * std::popcount(sectors);
    if (!write && !l1_.empty()) {
      const unsigned missing =
          l1_[static_cast<std::size_t>(multiprocessor)].use(line, sectors, false).missing;
      traffic_.l1_hits += kSectorBytes * (std::popcount(sectors) - std::popcount(missing));
      sectors = missing;
    }
    if (sectors == 0) return;
    memory_.use_line(partition, line, sectors, write);
    if (of_kernel_) of_kernel_->use_line(partition, line, sectors, write);
  }

  int multiprocessors_;
  L2Size l2_;
  MemorySystem memory_;
  std::optional<MemorySystem> of_kernel_;
  int64_t dram_apart_ = 0;
  std::vector<Cache> l1_;  // one per multiprocessor; empty if the kernel bypasses L1
  CallTraffic traffic_{};
};

}  // namespace

CallTraffic simulate(const std::vector<KernelRun>& kernels, int multiprocessors, const L2Size& l2) {
  require_one("the number of multiprocessors", multiprocessors);
  Gpu gpu(multiprocessors, l2, kernels.size() > 1);
  for (const KernelRun& kernel : kernels) {
    require_one("the number of blocks at a time", kernel.at_once);
    gpu.run(kernel);
  }
  return gpu.traffic();
}

WorkingSet working_set(const KernelRun& kernel) {
  require_one("the number of blocks at a time", kernel.at_once);
  WorkingSet result;
  TouchedBytes wave, read;
  BlockTrace trace;
  for (int64_t block = 0; block < std::min(kernel.at_once, kernel.trace.blocks); ++block) {
    trace.clear();
    kernel.trace.run(block, trace);
    result.block = std::max(result.block, distinct_bytes(trace));
    wave.add(trace);
    for (const BlockTrace::Range& range : trace.ranges()) {
      if (!range.write) read.add(range);
    }
  }
  result.wave = wave.all();
  result.wave_read = read.all();
  return result;
}

bool fits(const WorkingSet& set, const L2Size& l2) {
  return set.wave_read <= l2.bytes / l2.partitions;
}

}  // namespace splash::analysis
