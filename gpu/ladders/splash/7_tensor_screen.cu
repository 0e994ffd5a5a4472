// Rung 7: the dense product on the tensor cores, exactly all the same. A bfloat16 product screens: a score
// that lies under its row's bound by more than the certified error of the product (rounding errors of q and k
// times their norms, summed in float32: about 0.03 in z for the document's inputs) has p = 0. It runs twice
// over the keys: first for the largest scores of each row, tau of which bounds the row's; then to list what
// exceeds the bound. One pass with a bound that rises meanwhile lists five times as many and spends half of
// its instructions on them. What is listed is computed again in fp32 from the fp32 inputs, and only then
// chosen from, k_keep a key block; tau, probabilities and output are fp32. Bounds count at most k_keep keys a
// block: any such set has a tau no larger than that of the selected keys. A row whose list overflows, or
// whose inputs bfloat16 cannot bound, is computed by exact_row.
//
// Cycles: wgmma needs 256 a 64 x 128 tile, detection (64 max a thread, 8 warps) 2 x 64 x 2 issue slots of the
// same scheduler: 400-600 a pass and tile of 128 x 128. At N 32768 (16 heads) 524k tiles / 132 x 2 x 500
// cycles are 2.2 ms, where rung 6 needs 1.1 TFLOP at 30-40 TFLOP/s, some 30 ms. At N 2048: 2 x 16 tiles, 20k
// cycles, plus lists, gather and two launches: 30 us.

#include "gpu/arch/bulk_copy.cuh"
#include "gpu/arch/mbarrier.cuh"
#include "gpu/arch/wgmma.cuh"
#include "gpu/cuda_check.h"
#include "gpu/ladders/splash/exact_row.cuh"
#include "gpu/ladders/splash/screen.cuh"
#include "gpu/ladders/splash/screen_finish.cuh"

namespace splash::gpu {
namespace {

using namespace sparse;

template <int kPanels>
__global__ void __launch_bounds__(32 * kScreenWarps, kPanels == 1 ? 2 : 1)
    screen_kernel(const __grid_constant__ Problem p, const Rounded rounded) {
  extern __shared__ __align__(1024) unsigned char dynamic[];
  auto& shared = *reinterpret_cast<ScreenShared<kPanels>*>(dynamic);
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  const int head = static_cast<int>(blockIdx.x) % p.heads;
  const int q_tile = rounded.q_tiles - 1 - static_cast<int>(blockIdx.x) / p.heads;  // the longest rows first
  const int first = q_tile * kScreenTile, last = min(first + kScreenTile, p.q_len) - 1;
  const Head h = head_of(p, head);
  const Entmax entmax(h.alpha);
  const float gain = entmax.gain * fabsf(p.scale);

  if (thread == 0) {
    arch::mbarrier_init(&shared.q_full, 1);
    for (int s = 0; s < kScreenStages; ++s) {
      arch::mbarrier_init(&shared.full[s], 1);
      arch::mbarrier_init(&shared.empty[s], kScreenWarps);
    }
    arch::mbarrier_init_fence();
    shared.smallest = h.q_positions == nullptr ? 0 : INT32_MAX;
    shared.largest = h.q_positions == nullptr ? 0 : INT32_MIN;
  }
  __syncthreads();
  if (h.q_positions != nullptr && first + thread <= last) {
    atomicMin(&shared.smallest, h.q_positions[first + thread]);
    atomicMax(&shared.largest, h.q_positions[first + thread]);
  }
  __syncthreads();

  const int key_head = head / p.group;
  const float2* const k_norms = rounded.k_norms + static_cast<int64_t>(key_head) * rounded.k_tiles;
  const TileWalk tiles_seen{
      k_norms,
      h.k_positions == nullptr ? nullptr : rounded.k_positions + static_cast<int64_t>(head) * rounded.k_tiles,
      rounded.k_tiles,
      min(first + p.reach, p.kv_len),
      min(last + p.reach, p.kv_len),
      shared.smallest,
      shared.largest};
  TileWalk ahead = tiles_seen;  // warp 0's: the tile to be loaded next
  int loads = 0;
  bool again = false;
  const auto load = [&] {
    bool in_full;
    float2 norm;
    int tile = ahead.next(in_full, norm);
    if (tile < 0 && !again) {
      again = true;
      ahead = tiles_seen;
      tile = ahead.next(in_full, norm);
    }
    if (tile >= 0 && lane == 0) {
      const int stage = loads % kScreenStages;
      if (loads >= kScreenStages) arch::mbarrier_wait(&shared.empty[stage], (loads / kScreenStages - 1) & 1);
      arch::mbarrier_arrive_expect(&shared.full[stage], kPanels * kPanelBytes);
      arch::bulk_load(
          shared.k[stage],
          rounded.k + (static_cast<int64_t>(key_head) * rounded.k_tiles + tile) * kPanels * kPanelBytes,
          kPanels * kPanelBytes, &shared.full[stage]);
    }
    ++loads;
  };
  const int64_t q_index = static_cast<int64_t>(head) * rounded.q_tiles + q_tile;
  if (warp == 0) {
    if (lane == 0) {
      arch::mbarrier_arrive_expect(&shared.q_full, kPanels * kPanelBytes);
      arch::bulk_load(shared.q, rounded.q + q_index * kPanels * kPanelBytes, kPanels * kPanelBytes,
                      &shared.q_full);
    }
    for (int s = 0; s < kScreenStages; ++s) load();
  }

  const int row0 = warp * kWarpRows + lane / 4, row1 = row0 + 8;
  const auto start = [&](int row) {
    const float2 norms = rounded.q_norms[q_index * kScreenTile + row];
    const float sums =
        0x1p-15f * norms.y;  // bounds the rounding of sums, the tensor cores' and fp32's: |k| times it
    return ScreenRow{norms.x + sums,  norms.x + norms.y, 0, first + row < p.q_len ? -INFINITY : INFINITY, 0,
                     kCandidates - 16};
  };
  ScreenRow a = start(row0), b = start(row1);
  const CandidateRow list_a{shared.scores[row0], shared.keys[row0]},
      list_b{shared.scores[row1], shared.keys[row1]};
  const int counting = lanes_that_count(p);
  const int quota = p.k_keep / 4 + (quad_lane() < p.k_keep % 4 ? 1 : 0);
  arch::mbarrier_wait(&shared.q_full, 0);
  int visited = 0;
  const auto for_each_tile = [&](const auto& use) {
    TileWalk walk = tiles_seen;
#pragma unroll 1
    for (;; ++visited) {
      bool in_full;
      float2 norm;
      const int tile = walk.next(in_full, norm), stage = visited % kScreenStages;
      if (tile < 0) return;
      if (warp == 0 && visited > 0) load();
      __syncwarp();
      arch::mbarrier_wait(&shared.full[stage], visited / kScreenStages & 1);
      float acc[64];
      arch::wgmma_fence();
#pragma unroll
      for (int i = 0; i < 4 * kPanels; ++i) {
        const int panel = i / 4 * kPanelBytes, step = i % 4 * 32;
        arch::wgmma<__nv_bfloat16>(
            acc, arch::advance(arch::k_major_descriptor(shared.q + panel + warp / 4 * 64 * 128), step),
            arch::advance(arch::k_major_descriptor(shared.k[stage] + panel), step), i > 0);
      }
      arch::wgmma_commit();
      arch::wgmma_wait<0>();
      arch::wgmma_hold(acc);
      if (lane == 0) arch::mbarrier_arrive(&shared.empty[stage]);
      if (!in_full) {
        hide_unseen<0>(acc, sight_of(p, h, first + row0), tile * kScreenTile);
        hide_unseen<1>(acc, sight_of(p, h, first + row1), tile * kScreenTile);
      }
      use(acc, tile * kScreenTile, norm);
    }
  };

  // Twice over the keys: for bounds, then for what exceeds them. The tensor cores wait for the warps either
  // way, and bounds that rise while keys are listed let five times as many in.
  {
    TopScores top_a, top_b;
    for_each_tile([&](const float(&acc)[64], int, const float2& norm) {
      widen_margin(norm, a);
      widen_margin(norm, b);
      keep_top(largest_of<0>(acc), counting, top_a);
      keep_top(largest_of<1>(acc), counting, top_b);
    });
    bound_from(top_a, counting, entmax, gain, a);
    bound_from(top_b, counting, entmax, gain, b);
  }
  for_each_tile([&](const float(&acc)[64], int first_key, const float2&) {
    if (__any_sync(kWarp, a.count > a.trigger || b.count > b.trigger)) {
      tighten(entmax, gain, 3, list_a, a);
      tighten(entmax, gain, 3, list_b, b);
    }
    list_tile<0>(p.block, quota, acc, largest_of<0>(acc), first_key, list_a, a);
    list_tile<1>(p.block, quota, acc, largest_of<1>(acc), first_key, list_b, b);
  });

  const auto finish = [&](ScreenRow& row, const CandidateRow& list, int place) {
    score_again(p, h, first + place, list, row.count);
    select_candidates(p, list, row.count);
    const float factor = weigh_candidates(entmax, list, row.count);
    if (quad_lane() == 0) {
      shared.counts[place] = row.bound == INFINITY ? -1 : row.count;
      shared.factors[place] = factor;
    }
    __syncwarp();
  };
  finish(a, list_a, row0);
  finish(b, list_b, row1);
  gather<kPanels>(p, h, first, warp * kWarpRows, shared);
  __syncwarp();  // the warp's lists are free now
  for (int r = warp * kWarpRows; r < (warp + 1) * kWarpRows && first + r < p.q_len; ++r) {
    if (shared.counts[r] < 0)
      exact_row(p, head, first + r, shared.scores[warp * kWarpRows], shared.keys[warp * kWarpRows],
                kWarpRows * kCandidatePitch);
  }
}

// Carves the workspace up; returns its size.
int64_t lay_out(const AttentionSpec& spec, void* workspace, Rounded& to) {
  const AttentionShape& shape = spec.shape;
  const int64_t panels = tiles(shape.head_dim, 64);
  to.q_tiles = static_cast<int>(tiles(shape.q_len, kScreenTile));
  to.k_tiles = static_cast<int>(tiles(shape.kv_len, kScreenTile));
  to.key_heads = static_cast<int>(shape.batch * shape.kv_heads);
  const int64_t q_tiles = shape.batch * shape.q_heads * to.q_tiles,
                k_tiles = int64_t{to.key_heads} * to.k_tiles;
  int64_t bytes = 0;
  const auto take = [&](int64_t size) {
    void* const address = static_cast<char*>(workspace) + bytes;
    bytes += (size + 255) / 256 * 256;
    return address;
  };
  to.q = static_cast<unsigned char*>(take(q_tiles * panels * kPanelBytes));
  to.k = static_cast<unsigned char*>(take(k_tiles * panels * kPanelBytes));
  to.q_norms = static_cast<float2*>(take(q_tiles * kScreenTile * sizeof(float2)));
  to.k_norms = static_cast<float2*>(take(k_tiles * sizeof(float2)));
  const bool positions = !spec.mask.q_positions.empty();
  to.k_positions =
      static_cast<int2*>(take(positions ? shape.batch * shape.q_heads * to.k_tiles * sizeof(int2) : 0));
  return bytes;
}

Plan plan(const AttentionSpec& spec, Dtype, const DeviceInfo&) {
  const Problem p = make_problem(spec);
  Rounded to{};
  Plan plan;
  plan.tile = {kScreenTile, kScreenTile, 0, kScreenStages};
  plan.workspace_bytes = lay_out(spec, nullptr, to);
  const bool one_panel = p.head_dim <= 64;
  const int64_t position_tiles = spec.mask.q_positions.empty() ? 0 : int64_t{p.heads} * to.k_tiles;
  const void* const round = one_panel ? reinterpret_cast<const void*>(&round_kernel<1>)
                                      : reinterpret_cast<const void*>(&round_kernel<2>);
  const void* const screen = one_panel ? reinterpret_cast<const void*>(&screen_kernel<1>)
                                       : reinterpret_cast<const void*>(&screen_kernel<2>);
  plan.kernels = {
      {"round_kernel", round,
       int64_t{p.heads} * to.q_tiles + int64_t{to.key_heads} * to.k_tiles + position_tiles, kRoundThreads, 0},
      {"screen_kernel", screen, int64_t{p.heads} * to.q_tiles, 32 * kScreenWarps,
       static_cast<int64_t>(one_panel ? sizeof(ScreenShared<1>) : sizeof(ScreenShared<2>))}};
  plan.work = score_work(spec, plan.tile, one_panel ? 64 : 128, MathUnit::f16);
  plan.work.dram_bytes += 2.0 * static_cast<double>(plan.workspace_bytes);
  plan.work.executed_flops *= 2;  // two passes, each of half the bytes
  return plan;
}

template <int kPanels>
void launch_panels(const Problem& p, const Plan& plan, const Rounded& rounded, StreamHandle stream) {
  const KernelLaunch &round = plan.kernels[0], &screen = plan.kernels[1];
  round_kernel<kPanels><<<static_cast<unsigned>(round.blocks), round.threads, 0, stream>>>(p, rounded);
  check_launch("round_kernel");
  screen_kernel<kPanels>
      <<<static_cast<unsigned>(screen.blocks), screen.threads, screen.shared_bytes, stream>>>(p, rounded);
  check_launch("screen_kernel");
}

void launch(const AttentionSpec& spec, Dtype, const Plan& plan, const Arguments& arguments) {
  const Problem p = make_problem(spec, arguments);
  Rounded rounded{};
  lay_out(spec, arguments.workspace, rounded);
  if (p.head_dim <= 64) {
    launch_panels<1>(p, plan, rounded, arguments.stream);
  } else {
    launch_panels<2>(p, plan, rounded, arguments.stream);
  }
}

Limits limits() {
  Limits limits = fp32_limits(NormalizerKind::entmax, {32, 64, 128, 256});
  limits.compute_capability = 90;
  return limits;
}

const Variant kVariant{.ladder = "splash",
                       .rung = 7,
                       .name = "tensor-screen",
                       .idea =
                           "screen by bfloat16 tensor products with a certified margin, for bounds and then "
                           "for lists; fp32 for what is left",
                       .finding =
                           "154 us at N 2048 and 0.85 ms at 8192, 5.5 and 9.9 times faster than rung 6: the "
                           "product costs a fifth of fp32's, "
                           "and a handful of keys a row is left for everything else; one pass with rising "
                           "bounds took 1.6 to 1.8 times as long.",
                       .predicted = {.over = "0-three-launches", .low = 10, .high = 100, .claim = "S4.7"},
                       .limits = limits(),
                       .plan = plan,
                       .launch = launch};
const VariantRegistration kRegistration(kVariant);

}  // namespace
}  // namespace splash::gpu
