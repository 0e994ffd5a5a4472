// Rung 7: the dense product on the tensor cores, still exact. A bfloat16 product is the screen. Its certified
// error is the rounding errors of q and k times their norms, summed in float32: about 0.03 in z for the
// document's inputs. A score that lies below its row's bound on tau by more than that error has p = 0.
//
// The screen passes over the keys twice. The first pass finds the largest scores of each row; their tau is
// the row's bound. The second pass lists the keys that exceed the bound. A single pass with a bound that
// rises meanwhile lists five times as many keys and spends half of its instructions on them. The listed
// scores are computed again in fp32 from the fp32 inputs, and the selection, k_keep per key block, chooses
// only from these; tau, probabilities and output are fp32. A bound counts at most k_keep keys per block,
// because the tau of any such set is no larger than that of the selected keys. exact_row computes a row whose
// list overflows or whose inputs bfloat16 cannot bound.
//
// Predicted cycles: wgmma needs 256 per tile of 128 x 128. Detection (64 max per thread, 8 warps) takes 2 x
// 64 x 2 issue slots of the same scheduler. So 400-600 per pass and tile. At N 32768 (16 heads), 524k tiles /
// 132 x 2 x 500 cycles are 2.2 ms; rung 6 needs 1.1 TFLOP at 30-40 TFLOP/s, some 30 ms. At N 2048: 2 x 16
// tiles, 20k cycles, plus lists, gather and two launches: 30 us.
//
// Measured: 7.1 ms and 89 us. The prediction counted issue slots, but a scheduler has four warps and issues
// in 0.4 of its cycles. A tile is a chain: barrier, products, then maxima or list, twice for its two halves.
// The chain takes 1800 cycles in the first pass and 2800 in the second with one block per SM, and 3000 in
// either with two. At N 2048 all 256 blocks run at once, and the longest row of tiles decides. It takes 135k
// cycles: 5k to load Q, 49k and 48k for the 16 tiles of each pass, 21k to score some 120 pairs per warp
// again, select and solve, 11k to gather. Launching the screen early (programmatic launch) gains nothing,
// because where the kernels do overlap, an SM's two blocks are equally long.
//
// It was 240k (and 154 us) before six changes, which mended these costs:
// - the tile that the diagonal cuts: 35k (64 loads, each waited for)
// - a tile of the second pass: 5000 (four lists with scores)
// - both passes: spilled registers
// - scoring: 33k (ten instructions per term for two pairs at a time)
// - tau: 25k (computed from shared memory row by row)
// - the gather: 20k (four value rows in flight)

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

// Warp 0 loads the tiles for all warps, twice over. Two tiles are in flight while one is multiplied.
template <int kPanels>
__device__ __forceinline__ void load_next(ScreenShared<kPanels>& shared) {
  Loader loader = shared.loader;  // in shared memory between tiles: no registers of the other warps
  __syncwarp();                   // all have read it
  if (loader.rounds == 2) return;
  const SeenTile tile = loader.walk.next();
  if (tile.first_key < 0) {
    loader.walk.base = -32;  // start the second pass
    ++loader.rounds;
  }
  const int load = loader.loads++, stage = load % kScreenStages;
  if (threadIdx.x == 0) {
    shared.loader = loader;
    if (load >= kScreenStages) arch::mbarrier_wait(&shared.empty[stage], (load / kScreenStages - 1) & 1);
    shared.tiles[stage] = tile;
    if (tile.first_key < 0) {
      arch::mbarrier_arrive(&shared.full[stage]);
    } else {
      constexpr uint32_t kBytes = kPanels * kPanelBytes;
      arch::mbarrier_arrive_expect(&shared.full[stage], kBytes);
      arch::bulk_load(shared.k[stage],
                      loader.keys + static_cast<int64_t>(tile.first_key / kScreenTile) * kBytes, kBytes,
                      &shared.full[stage]);
    }
  }
  __syncwarp();
}

template <int kPanels>
__device__ __forceinline__ void start_loads(const Problem& p, const Head& h, int head, int first, int last,
                                            const Rounded& rounded, ScreenShared<kPanels>& shared) {
  const int64_t key_tiles = static_cast<int64_t>(head / p.group) * rounded.k_tiles;
  Loader loader{rounded.k + key_tiles * kPanels * kPanelBytes,
                {rounded.k_norms + key_tiles, nullptr, rounded.k_tiles, min(first + p.reach, p.kv_len),
                 min(last + p.reach, p.kv_len)}};
  if (h.q_positions != nullptr) {
    int smallest = INT32_MAX, largest = INT32_MIN;
    for (int i = first + static_cast<int>(threadIdx.x); i <= last; i += 32) {
      smallest = min(smallest, h.q_positions[i]);
      largest = max(largest, h.q_positions[i]);
    }
    loader.walk.positions = rounded.k_positions + static_cast<int64_t>(head) * rounded.k_tiles;
    loader.walk.smallest = __reduce_min_sync(kWarp, smallest);
    loader.walk.largest = __reduce_max_sync(kWarp, largest);
  }
  if (threadIdx.x == 0) shared.loader = loader;
  __syncwarp();
  for (int i = 0; i < kScreenStages - 1; ++i) load_next(shared);
}

template <int kPanels>
__global__ void __launch_bounds__(32 * kScreenWarps, kPanels == 1 ? 2 : 1)
    screen_kernel(const __grid_constant__ Problem p, const Rounded rounded, const int turn) {
  extern __shared__ __align__(1024) unsigned char dynamic[];
  auto& shared = *reinterpret_cast<ScreenShared<kPanels>*>(dynamic);
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  // The first `turn` blocks take the longest rows, longest first; the later ones take the rest, shortest
  // first: see launch_panels.
  const int block = static_cast<int>(blockIdx.x), blocks = static_cast<int>(gridDim.x);
  const int rank = block < turn ? block : blocks - 1 - (block - turn);
  const int head = rank % p.heads, q_tile = rounded.q_tiles - 1 - rank / p.heads;
  const int first = q_tile * kScreenTile, last = min(first + kScreenTile, p.q_len) - 1;
  const Head h = head_of(p, head);

  if (thread == 0) {
    for (int s = 0; s < kScreenStages; ++s) {
      arch::mbarrier_init(&shared.full[s], 1);
      arch::mbarrier_init(&shared.empty[s], 32 * kScreenWarps);
    }
    arch::mbarrier_init_fence();
  }
  __syncthreads();
  if (warp == 0) start_loads(p, h, head, first, last, rounded, shared);
  const int row0 = warp * kWarpRows + lane / 4, query = first + row0;
  Queries<kPanels> queries;
  queries.load(p, h, query);

  const uint64_t first_tile = arch::k_major_descriptor(shared.k[0]);
  int stage = 0, parity = 0;
  // Runs one pass over the tiles. Calls before() before each tile of 128 keys and use(products, first key)
  // for each 64 keys. Returns the largest norms seen.
  const auto for_each_64 = [&](const auto& before, const auto& use) {
#pragma unroll 1
    for (;;) {
      before();
      arch::mbarrier_wait(&shared.full[stage], parity);
      const SeenTile tile = shared.tiles[stage];
      if (warp == 0) load_next(shared);  // into the stage of the previous tile
#pragma unroll 1
      for (int part = 0; part < 2 && tile.first_key >= 0; ++part) {
        float acc[32];
        arch::wgmma_fence();
#pragma unroll
        for (int i = 0; i < 4 * kPanels; ++i) {
          const int at = stage * kPanels * kPanelBytes + part * (kPanelBytes / 2) + i / 4 * kPanelBytes;
          arch::wgmma<__nv_bfloat16>(acc, queries.rounded[i], arch::advance(first_tile, at + i % 4 * 32),
                                     i > 0);
        }
        arch::wgmma_commit();
        arch::wgmma_wait<0>();
        arch::wgmma_hold(acc);
        const int first_key = tile.first_key + 64 * part;
        if (!tile.in_full) hide_unseen(p, h, query, first_key, acc);
        use(acc, first_key);
      }
      arch::mbarrier_arrive(&shared.empty[stage]);  // every lane, for racecheck's sake
      stage = stage + 1 < kScreenStages ? stage + 1 : 0;
      parity ^= stage == 0 ? 1 : 0;
      if (tile.first_key < 0) return tile.norms;
    }
  };

  // Two passes: one for the bounds, one to list what exceeds them. The tensor cores wait for the warps either
  // way, and with a bound that rises during a single pass five times as many keys are listed.
  const Entmax entmax(h.alpha);
  ScreenRow rows[2];
  {
    const int lanes = lanes_that_count(p);
    TopScores tops[2];
    const float2 norms = for_each_64([] {},
                                     [&](const float(&acc)[32], int) {
                                       tops[0].insert<0>(acc, lanes);
                                       tops[1].insert<1>(acc, lanes);
                                     });
    start_lists(entmax, p.scale, lanes, tops, queries.norms, norms, rows);
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    rows[half].keys = shared.keys[row0 + 8 * half];
    rows[half].scores = shared.scores[row0 + 8 * half];
    if (query + 8 * half > last) rows[half].give_up();
  }
  for_each_64(
      [&] {
        if (__any_sync(kWarp, rows[0].count > rows[0].trigger || rows[1].count > rows[1].trigger))
          tighten<kPanels>(p, h, entmax, query, rows);
      },
      [&](const float(&acc)[32], int first_key) { list_above(acc, first_key, rows); });

  float largest[2], offset[2], factors[2];
  settle<kPanels>(p, h, entmax, query, rows, largest, offset);
  int counts[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    factors[half] = weigh(entmax, largest[half], offset[half], rows[half]);
    counts[half] = rows[half].lost() ? -1 : rows[half].count;
  }
  __syncwarp();
  const int warp_first = first + warp * kWarpRows;
  int* const keys = shared.keys[warp * kWarpRows];
  float* const scores = shared.scores[warp * kWarpRows];
  gather<kPanels>(p, h, warp_first, keys, scores, counts, factors);
#pragma unroll 1
  for (int half = 0; half < 2; ++half) {
    const bool lost = counts[half] < 0 && query + 8 * half <= last && quad_lane() == 0;
    for (uint32_t left = __ballot_sync(kWarp, lost); left != 0; left &= left - 1) {
      const int row = 8 * half + (__ffs(static_cast<int>(left)) - 1) / 4;
      exact_row(p, head, warp_first + row, scores, keys, kWarpRows * kCandidatePitch);  // the lists are free
    }
  }
}

// Carves the workspace up; returns its size.
int64_t lay_out(const AttentionSpec& spec, void* workspace, Rounded& to) {
  const AttentionShape& shape = spec.shape;
  const int64_t panels = ceil_div(shape.head_dim, 64);
  to.q_tiles = static_cast<int>(ceil_div(shape.q_len, kScreenTile));
  to.k_tiles = static_cast<int>(ceil_div(shape.kv_len, kScreenTile));
  to.key_heads = static_cast<int>(shape.batch * shape.kv_heads);
  const int64_t k_tiles = int64_t{to.key_heads} * to.k_tiles;
  int64_t bytes = 0;
  const auto take = [&](int64_t size) {
    void* const address = static_cast<char*>(workspace) + bytes;
    bytes += (size + 255) / 256 * 256;
    return address;
  };
  to.k = static_cast<unsigned char*>(take(k_tiles * panels * kPanelBytes));
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
      {"round_kernel", round, int64_t{to.key_heads} * to.k_tiles + position_tiles, kRoundThreads, 0},
      {"screen_kernel", screen, int64_t{p.heads} * to.q_tiles, 32 * kScreenWarps,
       static_cast<int64_t>(one_panel ? sizeof(ScreenShared<1>) : sizeof(ScreenShared<2>))}};
  plan.unit = MathUnit::f16;
  plan.tile.instruction_q = 64;
  return plan;
}

template <int kPanels>
void launch_panels(const Problem& p, const Plan& plan, const Rounded& rounded, StreamHandle stream) {
  const KernelLaunch &round = plan.kernels[0], &screen = plan.kernels[1];
  round_kernel<kPanels><<<static_cast<unsigned>(round.blocks), round.threads, 0, stream>>>(p, rounded);
  check_launch("round_kernel");
  // If all blocks run at once, each SM's second block is paired with its first: the longer the first, the
  // shorter the second.
  const int multiprocessors = device_attribute(cudaDevAttrMultiProcessorCount);
  const bool at_once = screen.blocks <= (kPanels == 1 ? 2 : 1) * multiprocessors;
  const int turn = at_once ? multiprocessors : static_cast<int>(screen.blocks);
  const auto blocks = static_cast<unsigned>(screen.blocks);
  screen_kernel<kPanels><<<blocks, screen.threads, screen.shared_bytes, stream>>>(p, rounded, turn);
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

// Traces the rounding of the keys and the two passes over them. The data decide how many listed keys a query
// scores again and weighs; the trace counts one, the minimum.
std::vector<KernelTrace> trace(const AttentionSpec& spec, Dtype dtype, const Plan& plan) {
  const Problem p = make_problem(spec);
  const TensorRows rows(spec.shape, dtype);
  Rounded to{};
  lay_out(spec, nullptr, to);
  const int64_t panels = ceil_div(p.head_dim, 64), tile_bytes = panels * kPanelBytes;
  const int64_t norms = reinterpret_cast<int64_t>(to.k_norms), k_tiles = to.k_tiles, key_heads = to.key_heads;
  const auto round = [=](int64_t tile, BlockTrace& trace) {
    if (tile >= key_heads * k_tiles) return;  // a block of k_positions
    rows.read_k(trace, tile / k_tiles, tile % k_tiles * kScreenTile, kScreenTile);
    trace.next_step();
    trace.write(Operand::workspace, tile * tile_bytes, tile_bytes);
    trace.write(Operand::workspace, norms + tile * int64_t{sizeof(float2)}, sizeof(float2));
  };
  const auto screen = [=, tile = plan.tile, seen = SeenTiles(spec, kScreenTile, kScreenTile)](
                          int64_t block, BlockTrace& trace) mutable {
    const QueryTile queries = query_tile(p, block, kScreenTile);
    rows.read_q(trace, queries.head, queries.first, kScreenTile);
    const bool any = trace_scores(trace, seen, queries, tile, 64 * panels, 2, [&](int64_t key_tile) {
      trace.read(Operand::workspace, (queries.kv_head * k_tiles + key_tile) * tile_bytes, tile_bytes);
    });
    if (any) rows.read_one_value_each(trace, queries.kv_head, queries.first, kScreenTile);
    trace.next_step();
    rows.write_out(trace, queries.head, queries.first, kScreenTile);
  };
  return {{.kernel = "round_kernel", .blocks = plan.kernels[0].blocks, .through_l1 = true, .run = round},
          {.kernel = "screen_kernel", .blocks = plan.kernels[1].blocks, .run = screen}};
}

Limits limits() {
  Limits limits = fp32_limits(NormalizerKind::entmax, {32, 64, 128, 256});
  limits.compute_capability = 90;
  return limits;
}

const Variant kVariant{
    .ladder = "splash",
    .rung = 7,
    .name = "tensor-screen",
    .idea =
        "screen by bfloat16 tensor products with a certified margin, for bounds and then for lists; fp32 "
        "for what is left",
    .finding =
        "89 us at N 2048 and 0.62 ms at 8192, 9.5 and 13 times faster than rung 6: the product costs a fifth "
        "of fp32's, and some seven keys a row are left for everything else; two thirds of the 89 us are the "
        "chains of the two passes, a quarter the listed keys. One pass with rising bounds took 1.6 to 1.8 "
        "times as long.",
    .limits = limits(),
    .plan = plan,
    .launch = launch,
    .trace = trace};
const VariantRegistration kRegistration(kVariant);

}  // namespace
}  // namespace splash::gpu
