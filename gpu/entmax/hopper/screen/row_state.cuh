#pragma once
// The state of a row while keys are screened, and the bound that holds it.
//
// A row's bound is at most its tau: a key whose score does not exceed it has p = 0. The bound decides in the
// screen's innermost comparison, so a row that takes no more keys gets a bound that no score exceeds, and
// which of these it is tells why. That costs no register and no instruction beside the comparison. Infinity
// may become NaN there (inf - inf): ask `score > bound`, which NaN answers with no, never its negation.

#include <cfloat>
#include <cmath>

namespace splash::gpu::entmax::hopper {

enum class RowState {
  open,     // takes keys; its bound is a number below tau
  no_keys,  // sees no key: its output is zero
  broad,  // deferred to the dense path: its support is broad, or it cannot be screened in float16. Also where
          // there is no row.
};

// In units of the screen's scores, which differ from row to row (WarpLists::unit).
struct RowBound {
  float value;

  // The bound that stands for a state other than open. What is deferred stands above what is not.
  static __device__ __forceinline__ constexpr RowBound of(RowState state) {
    return {state == RowState::no_keys ? kNoKeys : FLT_MAX};
  }

  // To another kernel, which computes the row and may start from its bound.
  __device__ __forceinline__ bool is_deferred() const { return value >= of(RowState::broad).value; }

 private:
  static constexpr float kNoKeys = 1e30f;  // above float16's largest
};

}  // namespace splash::gpu::entmax::hopper
