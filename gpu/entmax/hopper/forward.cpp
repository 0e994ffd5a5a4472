#include "gpu/entmax/hopper/forward.h"

#include <algorithm>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "core/round.h"
#include "gpu/arch/tensor_map.h"
#include "gpu/entmax/hopper/dense/dense.h"
#include "gpu/entmax/hopper/prepare/high_norm.h"
#include "gpu/entmax/hopper/prepare/prepare.h"
#include "gpu/entmax/problem.h"
#include "gpu/entmax/schedule/gather.h"
#include "gpu/entmax/schedule/launch.h"

namespace splash::gpu::entmax::hopper {

template <class T, RowKeys kRows>
ForwardKernel forward_kernel_of(int64_t head_dim);
extern template ForwardKernel forward_kernel_of<__nv_bfloat16, RowKeys::below>(int64_t);
extern template ForwardKernel forward_kernel_of<__nv_bfloat16, RowKeys::ranges>(int64_t);
extern template ForwardKernel forward_kernel_of<__nv_bfloat16, RowKeys::largest>(int64_t);
extern template ForwardKernel forward_kernel_of<__half, RowKeys::below>(int64_t);
extern template ForwardKernel forward_kernel_of<__half, RowKeys::ranges>(int64_t);
extern template ForwardKernel forward_kernel_of<__half, RowKeys::largest>(int64_t);

ForwardKernel forward_kernel_of(Dtype dtype, int64_t head_dim, RowKeys keys) {
  const auto of_type = [&]<class T>() {
    switch (keys) {
      case RowKeys::below:
        return forward_kernel_of<T, RowKeys::below>(head_dim);
      case RowKeys::ranges:
        return forward_kernel_of<T, RowKeys::ranges>(head_dim);
      case RowKeys::largest:
        break;
    }
    return forward_kernel_of<T, RowKeys::largest>(head_dim);
  };
  return dtype == Dtype::bf16 ? of_type.template operator()<__nv_bfloat16>()
                              : of_type.template operator()<__half>();
}

namespace {

constexpr int64_t kMostSms = 144;  // of a Hopper GPU
// Tiles of a lane that a slot holds: of 8192 keys all, or 32 KiB a warp, 72 MiB of a GPU at most. Of more
// than kLong keys twice as many: of 131072 Gaussian keys one lane of millions now and then lists more than
// 128. Its rows would be the dense path's, for 3 ms that nothing else fills.
constexpr int64_t kMostSpilled = 128, kLong = 32768;

}  // namespace

HopperWorkspace::HopperWorkspace(const AttentionSpec& spec, Dtype dtype, const Tuning& tuning) {
  const AttentionShape& s = spec.shape;
  const int64_t rows = s.rows(), heads = rows / s.q_len, key_heads = s.batch * s.kv_heads;
  const auto take = [this](int64_t part) {
    const int64_t at = bytes;
    bytes += round_up(part, 256);
    return at;
  };
  bounds = take(rows * int64_t{sizeof(float)});
  masks = take(heads * row_mask_words(static_cast<int>(s.q_len)) * int64_t{sizeof(uint32_t)});
  queries = take(rows * int64_t{sizeof(int)});
  counts = take(heads * int64_t{sizeof(int)});
  unstored_masks = take(heads * row_mask_words(static_cast<int>(s.q_len)) * int64_t{sizeof(uint32_t)});
  unstored_queries = take(rows * int64_t{sizeof(int)});
  unstored_counts = take(heads * int64_t{sizeof(int)});
  next_share = take(sizeof(uint32_t));
  errors = take(key_heads * ceil_div(s.kv_len, kErrorKeys) * int64_t{sizeof(float)});
  half_keys = dtype == Dtype::f16 ? -1 : take(key_heads * s.kv_len * s.head_dim * 2);
  const ForwardKernel kernel = forward_kernel_of(dtype, s.head_dim, row_keys(spec));
  const int64_t warps = screen_blocks(kernel, s) * (kernel.threads / 32);
  spill_slots = static_cast<int>(std::min(warps, kMostSms * kernel.warps_per_sm));
  spill_pairs =
      static_cast<int>(std::min(ceil_div(s.kv_len, 64), s.kv_len > kLong ? 2 * kMostSpilled : kMostSpilled));
  spilled = take(int64_t{spill_slots} * spill_pairs * 32 * 2 * int64_t{sizeof(int)});
  taken = take(spill_slots * int64_t{sizeof(uint32_t)});
  high_norm_per_segment = kernel.keys;
  segment =
      high_norm_segment(most_visible(spec), high_norm_per_segment, sampled_keys(spec, tuning.sampled_keys));
  if (segment == 0) return;
  high_norm_count = s.kv_len / segment * high_norm_per_segment;
  high_norm_keys = take(key_heads * high_norm_count * s.head_dim * 2);
}

bool has_ranges(const AttentionSpec& spec) {
  return spec.mask.has_window(spec.shape) || !spec.mask.cu_seqlens_q.empty();
}

RowKeys row_keys(const AttentionSpec& spec) {
  return kept_keys(spec) > 0 ? RowKeys::largest : has_ranges(spec) ? RowKeys::ranges : RowKeys::below;
}

int64_t screen_blocks(const ForwardKernel& kernel, const AttentionShape& s) {
  return s.batch * s.q_heads * ceil_div(s.q_len, kernel.queries);
}

UnstoredRows unstored_rows(const AttentionSpec& spec, Dtype dtype, const ForwardArguments& args) {
  if (kept_keys(spec) > 0) return {};
  if (args.unstored_queries != nullptr)
    return {.rows = {args.unstored_queries, args.unstored_counts}, .tau = args.tau};
  const HopperWorkspace workspace(spec, dtype, args.tuning);
  auto* const base = static_cast<const char*>(args.workspace);
  return {.rows = {reinterpret_cast<const int*>(base + workspace.unstored_queries),
                   reinterpret_cast<const int*>(base + workspace.unstored_counts)},
          .tau = args.tau};
}

namespace {

bool leaves_rows(const AttentionSpec& spec, const ForwardArguments& args) {
  return args.stored == StoredRows::sparse && kept_keys(spec) == 0;
}

// The problem with its parts of the workspace.
ForwardProblem problem_in(const HopperWorkspace& workspace, const AttentionSpec& spec,
                          const ForwardArguments& args) {
  ForwardProblem p = problem_of(spec, args);
  const auto at = [&](int64_t offset) {
    return static_cast<void*>(static_cast<char*>(args.workspace) + offset);
  };
  p.bounds = static_cast<float*>(at(workspace.bounds));
  p.broad_masks = static_cast<uint32_t*>(at(workspace.masks));
  if (leaves_rows(spec, args)) p.unstored_masks = static_cast<uint32_t*>(at(workspace.unstored_masks));
  p.next_share = static_cast<uint32_t*>(at(workspace.next_share));
  p.spill = {.pairs = at(workspace.spilled),
             .taken = static_cast<uint32_t*>(at(workspace.taken)),
             .count = workspace.spill_slots,
             .pairs_per_lane = workspace.spill_pairs};
  p.errors = static_cast<float*>(at(workspace.errors));
  p.half_keys = workspace.half_keys < 0 ? nullptr : at(workspace.half_keys);
  p.segment = workspace.segment;
  if (p.segment > 0) {
    p.high_norm_per_segment = workspace.high_norm_per_segment;
    p.high_norm_keys = at(workspace.high_norm_keys);
  }
  return p;
}

void launch_screen(ForwardProblem p, const AttentionSpec& spec, Dtype dtype, int64_t high_norm_count,
                   const ForwardArguments& args) {
  const AttentionShape& s = spec.shape;
  const ForwardKernel kernel = forward_kernel_of(dtype, s.head_dim, row_keys(spec));
  const auto map_of = [&](const void* keys, int64_t length) {
    return arch::encode_tiles({.data = keys,
                               .dtype = Dtype::f16,
                               .heads = s.batch * s.kv_heads,
                               .length = length,
                               .dim = s.head_dim,
                               .tile_rows = kernel.keys,
                               .tile_columns = 64});
  };
  CUtensorMap k_map = map_of(p.half_keys != nullptr ? p.half_keys : p.k, s.kv_len);
  CUtensorMap high_norm_map = p.segment > 0 ? map_of(p.high_norm_keys, high_norm_count) : k_map;
  void* arguments[] = {&p, &k_map, &high_norm_map};
  launch("forward_kernel", kernel.function, dim3(static_cast<unsigned>(screen_blocks(kernel, s))),
         kernel.threads, kernel.shared_bytes, args.stream, arguments);
}

}  // namespace

RowList enqueue(const AttentionSpec& spec, Dtype dtype, const ForwardArguments& args) {
  const HopperWorkspace workspace(spec, dtype, args.tuning);
  ForwardProblem p = problem_in(workspace, spec, args);
  const auto at = [&](int64_t offset) {
    return reinterpret_cast<int*>(static_cast<char*>(args.workspace) + offset);
  };
  const ListedMasks deferred{
      .masks = p.broad_masks, .queries = at(workspace.queries), .counts = at(workspace.counts)};
  prepare_keys(p, dtype, args.stream, args.begin);
  launch_screen(p, spec, dtype, workspace.high_norm_count, args);
  if (leaves_rows(spec, args)) {
    const bool given = args.unstored_queries != nullptr;
    gather_rows(p, deferred, args.stream,
                {.masks = p.unstored_masks,
                 .queries = given ? args.unstored_queries : at(workspace.unstored_queries),
                 .counts = given ? args.unstored_counts : at(workspace.unstored_counts)},
                p.support, args.notice);
    p.support = {};
  } else {
    gather_rows(p, deferred, args.stream);
  }
  p.rows = {deferred.queries, deferred.counts};
  if (p.k_keep > 0) return p.rows;
  launch_dense(p, dtype, args.stream);
  if (!leaves_rows(spec, args)) tell_entries(p.support, args.notice, args.stream);
  return {};
}

}  // namespace splash::gpu::entmax::hopper
