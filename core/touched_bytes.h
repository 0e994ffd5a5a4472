#pragma once
// Which bytes of memory were touched, each counted once.

#include <array>
#include <cstdint>
#include <vector>

#include "core/block_trace.h"

namespace splash {

class TouchedBytes {
 public:
  void add(const BlockTrace& trace) {
    for (const BlockTrace::Range& range : trace.ranges()) add(range);
  }
  void add(const BlockTrace::Range& range);

  int64_t of(Operand operand) const;
  int64_t all() const;

 private:
  // One bit per four bytes: where ranges begin and end, no element is smaller.
  std::array<std::vector<uint64_t>, kOperands> bits_;
};

}  // namespace splash
