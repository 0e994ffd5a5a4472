// The portable path as a variant: the ladders' tests hold it against the double oracle, and it can be timed
// beside Hopper's.

#include "gpu/engine/variant.h"

#include "gpu/engine/work.h"
#include "gpu/entmax/portable/problem.h"
#include "gpu/entmax/variant_arguments.h"

namespace splash::gpu::entmax::portable {
namespace {

Plan plan(const AttentionSpec& spec, Dtype dtype, const DeviceInfo& /*device*/) {
  require_forward(spec, dtype);
  require_alphas("entmax/1-portable", spec);
  const Kernel screen = screen_kernel_of(dtype, spec.shape.head_dim);
  const Kernel stream = stream_kernel_of(dtype, spec.shape.head_dim);
  const auto launch_of = [&](const char* name, const Kernel& kernel) {
    return KernelLaunch{.name = name,
                        .function = kernel.function,
                        .blocks = blocks_of(kernel, spec.shape),
                        .threads = kernel.threads,
                        .shared_bytes = kernel.shared_bytes};
  };
  Plan plan;
  plan.tile = {.q = screen.queries, .k = kTileKeys, .d = 0, .stages = 2};
  plan.kernels = {launch_of("screen_kernel", screen), launch_of("stream_kernel", stream)};
  plan.workspace_bytes = variant_workspace_bytes(spec, dtype);
  const bool tensor_cores = dtype != Dtype::f32;
  plan.work = tiled_work(spec, dtype, plan.tile, round_up(spec.shape.head_dim, tensor_cores ? 16 : 8),
                         tensor_cores ? MathUnit::f16 : MathUnit::fp32);
  plan.work.executed_flops *= 0.5;  // no product with V; what stream_kernel repeats only the inputs tell
  return plan;
}

void launch(const AttentionSpec& spec, Dtype dtype, const Plan& /*plan*/, const Arguments& args) {
  enqueue_forward(spec, dtype, forward_arguments(spec, args, ForwardPath::portable));
}

const Variant kVariant{
    .ladder = "entmax",
    .rung = 1,
    .name = "portable",
    .idea =
        "mma.sync and cp.async on sm_80 and newer: lists above a certified bound for every dtype, mask and "
        "K_KEEP; rows that outgrow theirs take tau by passes that hold no score",
    .finding =
        "Not measured yet: nothing is claimed of its speed. It is there for what the path for Hopper "
        "does not take.",
    .limits = {.dtypes = {Dtype::bf16, Dtype::f16, Dtype::f32},
               .normalizers = {NormalizerKind::entmax},
               .selections = {SelectionKind::all, SelectionKind::top_k_row},
               .causal = true,
               .positions = true,
               .compute_capability = 80},
    .plan = plan,
    .launch = launch};
const VariantRegistration kRegistration(kVariant);

}  // namespace
}  // namespace splash::gpu::entmax::portable
