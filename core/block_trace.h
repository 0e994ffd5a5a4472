#pragma once
// What the blocks of a kernel read, write, multiply and exponentiate, step by step as its loops do it. The
// kernel's declaration provides it. It runs on the CPU, to count the work or to simulate caches.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace splash {

// Each operand is an address space of its own; offsets are bytes from the tensor's first.
enum class Operand : uint8_t { q, k, v, out, key_lists, workspace, d_out, d_q, d_k, d_v };
inline constexpr int kOperands = 10;

// The trace of one block: ranges of memory in steps. The ranges of one step are in flight at the same time. A
// simulation decides how the steps of different blocks interleave (analysis/cache/simulate.h).
class BlockTrace {
 public:
  struct Range {
    Operand operand = Operand::q;
    bool write = false;
    int64_t offset = 0, bytes = 0;  // of the first row
    int64_t rows = 1, pitch = 0;    // bytes from row to row
  };

  void read(Operand operand, int64_t offset, int64_t bytes, int64_t rows = 1, int64_t pitch = 0) {
    add({operand, false, offset, bytes, rows, pitch});
  }
  void write(Operand operand, int64_t offset, int64_t bytes, int64_t rows = 1, int64_t pitch = 0) {
    add({operand, true, offset, bytes, rows, pitch});
  }
  // An m x n product whose sums run over k, as executed: padding included.
  void multiply(int64_t m, int64_t n, int64_t k) {
    flops_ += 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  }
  // Counts the exponentials of rows x keys scores as executed, and those that online softmax needs to correct
  // each row's sums, by every thread that does so.
  void exponentiate(int64_t rows, int64_t keys, int64_t corrections_of_row) {
    exponentials_ += static_cast<double>(rows) * static_cast<double>(keys + corrections_of_row);
  }
  void next_step() { step_ends_.push_back(ranges_.size()); }

  // Starts a new block; keeps the allocated memory.
  void clear() {
    ranges_.clear();
    step_ends_.clear();
    flops_ = exponentials_ = 0;
  }
  // Ranges after the last next_step() form a step, too.
  std::size_t steps() const { return step_ends_.size() + 1; }
  const Range* begin(std::size_t step) const {
    return ranges_.data() + (step == 0 ? 0 : step_ends_[step - 1]);
  }
  const Range* end(std::size_t step) const {
    return ranges_.data() + (step < step_ends_.size() ? step_ends_[step] : ranges_.size());
  }
  const std::vector<Range>& ranges() const { return ranges_; }
  double flops() const { return flops_; }
  double exponentials() const { return exponentials_; }

 private:
  void add(const Range& range) {
    if (range.bytes > 0 && range.rows > 0) ranges_.push_back(range);
  }

  std::vector<Range> ranges_;
  std::vector<std::size_t> step_ends_;
  double flops_ = 0, exponentials_ = 0;
};

// One kernel of a call. Its blocks start in the order of their indices.
struct KernelTrace {
  std::string kernel;  // as the plan names it
  int64_t blocks = 0;  // pieces of work: blocks, clusters, or the items that persistent blocks take in turn
  int cluster = 1;     // blocks that share one piece
  bool through_l1 = false;  // reads look in L1 first; copies into shared memory do not
  std::function<void(int64_t block, BlockTrace& trace)> run{};  // appends what the block does
};

}  // namespace splash
