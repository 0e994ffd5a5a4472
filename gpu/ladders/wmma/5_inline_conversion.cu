// Source 002, quick win 1, which the document skips for fear of losing the fp32 softmax. Nothing is lost:
// exponential and sum are computed in fp32, and only the result is written in 16 bits, into the front half of
// the row's own scores. The converting pass, its re-reading and two of the ten barriers go.
//
// Predicted: one of six passes over the scores goes. The document puts the conversion at 5 to 10 %.

#include "gpu/ladders/wmma/phases.cuh"

namespace splash::gpu {
namespace {

using namespace wmma_ladder;

constexpr int kTileM = 32, kWarps = 8;

// A row of probabilities overwrites the front half of its own scores, which only this warp reads.
template <class Tiles>
__device__ void exponentiate_and_convert(Tiles& tiles, typename Tiles::RowState& rows) {
#pragma unroll
  for (int i = 0; i < rows.kCount; ++i) rows.exponentiate(i, score_of(tiles, rows, i));
  write_probabilities_in_place(tiles, rows);
}

template <class T, int kDim>
using Shared = Tiles<T, kDim, kTileM, kWarps, kPad>;

template <class T, int kDim>
__global__ void __launch_bounds__(kWarps* kWarp) attention(Problem p) {
  auto& tiles = shared_tiles<Shared<T, kDim>>();
  typename Shared<T, kDim>::RowState rows;
  const BlockTask task = block_task(p, kTileM);
  load_queries(tiles, p, task);

  for (int first_key = 0; first_key < task.end_key; first_key += kTileN) {
    load_keys_and_values(tiles, p, task, first_key);
    __syncthreads();
    multiply_scores(tiles);
    __syncthreads();
    mask_scores(tiles, rows, p, task, first_key);
    __syncthreads();
    raise_maxima(tiles, rows);
    __syncthreads();
    exponentiate_and_convert(tiles, rows);
    __syncthreads();
    add_sums(rows);
    __syncthreads();
    multiply_values<Shared<T, kDim>::kInPlaceStride>(tiles);
    __syncthreads();
    accumulate(tiles, rows);
    __syncthreads();
  }
  rows.template write<T>(p, task);
}

Plan plan(const AttentionSpec& spec, Dtype dtype, const DeviceInfo&) {
  const Entry entry = for_instance(dtype, spec.shape.head_dim, [](auto instance) {
    using I = decltype(instance);
    using T = typename I::Element;
    return entry_of<Shared<T, I::kHeadDim>>(attention<T, I::kHeadDim>);
  });
  return tiled_plan(spec, {.q = kTileM, .k = kTileN}, "inline-conversion", kWarps * kWarp, entry);
}

const Variant kVariant{
    .ladder = "wmma",
    .rung = 5,
    .name = "inline-conversion",
    .idea = "probabilities are rounded as they are written: no pass that converts",
    .finding = "1.06x at B 2 and 1.04x at B 1, under the 10 % expected; 1.06x at B 4, H 16, S 4096.",
    .predicted = {.over = "4-eight-warps", .low = 1.05, .high = 1.10, .claim = "S2.1"},
    .limits = limits_of({.compute_capability = 80}),
    .plan = plan,
    .launch = launch_tiles,
    .trace = trace_tiles};
const VariantRegistration kRegistration(kVariant);

}  // namespace
}  // namespace splash::gpu
