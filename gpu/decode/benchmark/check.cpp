#include "core/round.h"
#include "gpu/decode/benchmark/steps.h"

namespace splash::gpu::decode {

void check_problem(const StepProblem& problem) {
  const AttentionShape& s = problem.shape;
  s.validate();
  const Cache cache{.dtype = problem.dtype,
                    .page_size = problem.page_size,
                    .kv_heads = static_cast<int>(s.kv_heads),
                    .head_dim = static_cast<int>(s.head_dim),
                    .bits = problem.bits,
                    .fp8 = problem.fp8};
  check_cache(cache);
  const PageTable table{.batch = static_cast<int>(s.batch),
                        .width = static_cast<int>(ceil_div(s.kv_len, problem.page_size))};
  check_step(cache, table, {.q_heads = static_cast<int>(s.q_heads), .q_len = static_cast<int>(s.q_len)});
}

}  // namespace splash::gpu::decode
