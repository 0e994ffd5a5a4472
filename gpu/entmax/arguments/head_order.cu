#include "gpu/entmax/arguments/head_order.h"

#include <string>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "core/error.h"
#include "gpu/cuda_check.h"
#include "gpu/entmax/arguments/head_order_kernel.cuh"

namespace splash::gpu::entmax {
namespace {

template <class Element>
void check(const char* name, const HeadRows<Element>& rows) {
  if (reinterpret_cast<uintptr_t>(rows.data) % 16 == 0 && rows.batch % kPieceElements == 0 &&
      rows.head % kPieceElements == 0 && rows.row % kPieceElements == 0)
    return;
  throw InvalidArgument(std::string(name) +
                        " does not lie as allowed: addresses and distances of 16-byte multiples");
}

}  // namespace

void reorder_heads(const HeadOrder& order, Dtype dtype, StreamHandle stream) {
  if (dtype != Dtype::f16 && dtype != Dtype::bf16)
    throw InvalidArgument("heads are put in order in float16 and bfloat16, not in " +
                          std::string(to_string(dtype)));
  if (order.head_dim < 1 || order.head_dim % kPieceElements != 0)
    throw InvalidArgument("head_dim is " + std::to_string(order.head_dim) + "; allowed: multiples of 8");
  const int64_t heads = int64_t{order.batch} * order.heads;
  if (heads > kMostOrderedHeads)
    throw InvalidArgument(std::to_string(heads) + " heads of all batch entries; allowed: up to " +
                          std::to_string(kMostOrderedHeads));
  if (order.factors != nullptr && order.factor_count != 1 && order.factor_count != order.heads)
    throw InvalidArgument(std::to_string(order.factor_count) + " factors; allowed: 1, or one a head");
  if (order.sums != nullptr && (order.factors == nullptr || order.beside.data == nullptr))
    throw InvalidArgument("sums are of heads that have factors, and need what they are multiplied with");
  check("from", order.from);
  check("to", order.to);
  check("beside", order.beside);
  if (heads == 0 || order.rows == 0) return;
  const dim3 grid(static_cast<unsigned>(sums_per_head(order.rows, order.head_dim)),
                  static_cast<unsigned>(heads));
  const auto kernel = dtype == Dtype::bf16 ? reorder_kernel<__nv_bfloat16> : reorder_kernel<__half>;
  kernel<<<grid, kOrderThreads, 0, stream>>>(order);
  check_launch("reorder_kernel");
}

}  // namespace splash::gpu::entmax
