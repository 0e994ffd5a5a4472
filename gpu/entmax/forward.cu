#include "gpu/entmax/forward.h"

#include <algorithm>
#include <string>

#include "core/error.h"
#include "gpu/arch/tensor_map.h"
#include "gpu/cuda_check.h"
#include "gpu/engine/round.h"
#include "gpu/engine/work.h"
#include "gpu/entmax/forward_kernel.cuh"
#include "gpu/entmax/row_path.h"

namespace splash::gpu::entmax {
namespace {

// Of the row path: as many as fill the chip, as long as their scratch is 32 MB or less.
int row_path_blocks(const AttentionSpec& spec) {
  return static_cast<int>(std::clamp<int64_t>((int64_t{1} << 23) / spec.shape.kv_len, 64, 528));
}

// The workspace: crowded rows, their count, scratch of the row path.
int64_t crowded_bytes(const AttentionSpec& spec) {
  return round_up(spec.shape.rows() * int64_t{sizeof(int64_t)}, 256);
}

// One sentence for whatever forward does not take.
void require_supported(const AttentionSpec& spec, Dtype dtype) {
  spec.validate();
  const auto unless = [](bool holds, const std::string& sentence) {
    if (!holds) throw Unsupported("entmax forward takes " + sentence);
  };
  const AttentionShape& s = spec.shape;
  unless(dtype == Dtype::bf16 || dtype == Dtype::f16,
         "bfloat16 and float16, not " + std::string(to_string(dtype)));
  unless(s.head_dim % 8 == 0 && s.head_dim <= 256,
         "head_dims that are multiples of 8 up to 256, not " + std::to_string(s.head_dim));
  unless(spec.normalizer.kind == NormalizerKind::entmax,
         "the normalizer entmax, not " + std::string(to_string(spec.normalizer.kind)));
  for (const double alpha : spec.normalizer.alpha)
    unless(alpha <= 2,
           "alpha above 1 and up to 2, where Newton's bounds are certified, not " + std::to_string(alpha));
  unless(spec.selection.kind == SelectionKind::all,
         "all keys, not the selection " + std::string(to_string(spec.selection.kind)));
  unless(spec.mask.q_positions.empty() && spec.mask.cu_seqlens_q.empty(),
         "no mask or a causal one, no positions and no packed sequences");
  unless(spec.score_scale() > 0, "a scale above 0, not " + std::to_string(spec.scale));
}

Problem problem_of(const AttentionSpec& spec, const ForwardArguments& args) {
  const AttentionShape& s = spec.shape;
  Problem p;
  p.q = args.q;
  p.k = args.k;
  p.v = args.v;
  p.out = args.out;
  p.tau = args.tau;
  p.support = args.support;
  p.alpha = args.alpha;
  p.alphas = static_cast<int>(spec.normalizer.alpha.size());
  p.heads = static_cast<int>(s.batch * s.q_heads);
  p.q_heads = static_cast<int>(s.q_heads);
  p.group = static_cast<int>(s.group());
  p.q_len = static_cast<int>(s.q_len);
  p.kv_len = static_cast<int>(s.kv_len);
  p.head_dim = static_cast<int>(s.head_dim);
  p.reach = static_cast<int>(spec.mask.causal ? s.kv_len - s.q_len + 1 : s.kv_len);
  p.scale = static_cast<float>(spec.score_scale());
  p.crowded_rows = static_cast<int64_t*>(args.workspace);
  p.crowded_count = reinterpret_cast<int*>(static_cast<char*>(args.workspace) + crowded_bytes(spec));
  return p;
}

struct Kernel {
  void (*function)(Problem, CUtensorMap) = nullptr;
  int keys = 0, stages = 0, shared_bytes = 0;
};

template <class T>
Kernel kernel_of(int64_t head_dim) {
  const auto with = [](auto tiles, auto* function) {
    return Kernel{function, decltype(tiles)::kKeys, decltype(tiles)::kStages, int{sizeof(tiles)}};
  };
  if (head_dim <= 64) return with(ForwardTiles<1>{}, forward_kernel<T, 1>);
  if (head_dim <= 128) return with(ForwardTiles<2>{}, forward_kernel<T, 2>);
  if (head_dim <= 192) return with(ForwardTiles<3>{}, forward_kernel<T, 3>);
  return with(ForwardTiles<4>{}, forward_kernel<T, 4>);
}

Kernel kernel_of(Dtype dtype, int64_t head_dim) {
  return dtype == Dtype::bf16 ? kernel_of<__nv_bfloat16>(head_dim) : kernel_of<__half>(head_dim);
}

int64_t blocks_of(const AttentionShape& s) {
  return s.batch * s.q_heads * ceil_div(s.q_len, kQueries);
}

}  // namespace

int64_t forward_workspace_bytes(const AttentionSpec& spec) {
  return crowded_bytes(spec) + 256 + row_path_blocks(spec) * spec.shape.kv_len * int64_t{sizeof(float)};
}

void enqueue_forward(const AttentionSpec& spec, Dtype dtype, const ForwardArguments& args) {
  require_supported(spec, dtype);
  const AttentionShape& s = spec.shape;
  const Problem p = problem_of(spec, args);
  const Kernel kernel = kernel_of(dtype, s.head_dim);
  const CUtensorMap k_map = arch::encode_tiles({.data = args.k,
                                                .dtype = dtype,
                                                .heads = s.batch * s.kv_heads,
                                                .length = s.kv_len,
                                                .dim = s.head_dim,
                                                .tile_rows = kernel.keys,
                                                .tile_columns = 64});
  check_cuda(cudaMemsetAsync(p.crowded_count, 0, sizeof(int), args.stream), "clear a counter");
  check_cuda(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel.function),
                                  cudaFuncAttributeMaxDynamicSharedMemorySize, kernel.shared_bytes),
             "ask for shared memory");
  kernel.function<<<static_cast<unsigned>(blocks_of(s)), kThreads, kernel.shared_bytes, args.stream>>>(p,
                                                                                                       k_map);
  check_launch("forward_kernel");
  launch_row_path(p, dtype, row_path_blocks(spec),
                  reinterpret_cast<float*>(reinterpret_cast<char*>(p.crowded_count) + 256), args.stream);
}

namespace {

// The variant's alphas come by value; the library's are in device memory.
constexpr int kMaxAlphas = 256;
struct AlphaTable {
  float values[kMaxAlphas];
};
__global__ void set_alphas(const __grid_constant__ AlphaTable table, int count, float* to) {
  if (static_cast<int>(threadIdx.x) < count) to[threadIdx.x] = table.values[threadIdx.x];
}

int64_t alpha_bytes(const AttentionSpec& spec) {
  return round_up(static_cast<int64_t>(spec.normalizer.alpha.size() * sizeof(float)), 256);
}

Plan plan(const AttentionSpec& spec, Dtype dtype, const DeviceInfo&) {
  require_supported(spec, dtype);
  if (spec.normalizer.alpha.size() > kMaxAlphas) {
    throw Unsupported("entmax/0-one-pass takes one alpha for all heads or at most " +
                      std::to_string(kMaxAlphas) + ", not " + std::to_string(spec.normalizer.alpha.size()));
  }
  const Kernel kernel = kernel_of(dtype, spec.shape.head_dim);
  Plan plan;
  plan.tile = {.q = kQueries, .k = kernel.keys, .d = 0, .stages = kernel.stages};
  plan.kernels = {{.name = "forward_kernel",
                   .function = reinterpret_cast<const void*>(kernel.function),
                   .blocks = blocks_of(spec.shape),
                   .threads = kThreads,
                   .shared_bytes = kernel.shared_bytes},
                  {.name = "row_kernel",
                   .function = row_kernel_of(dtype),
                   .blocks = row_path_blocks(spec),
                   .threads = kRowPathThreads}};
  plan.workspace_bytes = alpha_bytes(spec) + forward_workspace_bytes(spec);
  plan.work = tiled_work(spec, dtype, plan.tile, round_up(spec.shape.head_dim, 64), MathUnit::f16);
  plan.work.executed_flops *= 0.5 * (1 + 1.0 / kSampled);  // no product with V; some tiles of Q K^T twice
  return plan;
}

void launch(const AttentionSpec& spec, Dtype dtype, const Plan&, const Arguments& args) {
  auto* const alpha = static_cast<float*>(args.workspace);
  AlphaTable table{};
  const auto count = static_cast<int>(spec.normalizer.alpha.size());
  std::copy_n(spec.normalizer.alpha.begin(), count, table.values);
  set_alphas<<<1, kMaxAlphas, 0, args.stream>>>(table, count, alpha);
  check_launch("set_alphas");
  enqueue_forward(spec, dtype,
                  {.q = args.q,
                   .k = args.k,
                   .v = args.v,
                   .out = args.out,
                   .alpha = alpha,
                   .workspace = static_cast<char*>(args.workspace) + alpha_bytes(spec),
                   .stream = args.stream});
}

const Variant kVariant{
    .ladder = "entmax",
    .rung = 0,
    .name = "one-pass",
    .idea =
        "one dense product screens with a certified bound; tau, probabilities and values "
        "come from the few pairs above it",
    .finding =
        "1.31 ms at 16k, 16 heads, d 64, causal, variance 6, and 2.71 ms at 64k, 4 heads, variance 25, "
        "where cuDNN's dense takes 1.27 and 4.93: early keys still exceed their rows' bounds often.",
    .limits = {.dtypes = {Dtype::bf16, Dtype::f16},
               .normalizers = {NormalizerKind::entmax},
               .causal = true,
               .compute_capability = 90},
    .plan = plan,
    .launch = launch};
const VariantRegistration kRegistration(kVariant);

}  // namespace
}  // namespace splash::gpu::entmax
