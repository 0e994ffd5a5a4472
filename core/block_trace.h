#pragma once
// What the blocks of a kernel ask of memory, multiply and exponentiate, as its loops do it: said by the
// kernel's declaration, run on the CPU by whoever counts, or simulates caches.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace splash {

// Each is an address space of its own; offsets are bytes from the tensor's first.
enum class Operand : uint8_t { q, k, v, out, key_lists, workspace, d_out, d_q, d_k, d_v };
inline constexpr int kOperands = 10;

// A run of one block: ranges of memory, in steps. What is asked for in one step is under way at once; all
// blocks are thought to take their steps at one pace.
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
  // Exponentials of rows x keys scores as executed, and of the corrections that online softmax makes to each
  // row's sums, by every thread that does so.
  void exponentiate(int64_t rows, int64_t keys, int64_t corrections_of_row) {
    exponentials_ += static_cast<double>(rows) * static_cast<double>(keys + corrections_of_row);
  }
  void next_step() { step_ends_.push_back(ranges_.size()); }

  // The block begins anew; memory is kept.
  void clear() {
    ranges_.clear();
    step_ends_.clear();
    flops_ = exponentials_ = 0;
  }
  // Ranges behind the last next_step() are a step too.
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

// One kernel of a call. Its blocks start in the order of their numbers.
struct KernelTrace {
  std::string kernel;  // as the plan names it
  int64_t blocks = 0;  // pieces of work: blocks, clusters, or what persistent blocks take one after another
  int cluster = 1;     // blocks that work on one piece together
  bool through_l1 = false;  // reads look into L1 first; copies into shared memory do not
  std::function<void(int64_t block, BlockTrace& trace)> run{};  // appends what the block does
};

}  // namespace splash
