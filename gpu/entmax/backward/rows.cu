// The row pass. A group of lanes takes a query row: it gathers the rows of V, then those of K, that the row's
// entries name. The groups of a warp all loop as often as the longest of their rows needs, so place_rows
// (places.cu) gave them rows of about the same length. Rows with more than kLongRow entries get a block each
// (long_rows.cuh): the first blocks take them, so that none is left with one at the end.

#include <algorithm>

#include "gpu/entmax/backward/long_rows.cuh"
#include "gpu/entmax/schedule/launch.cuh"

namespace splash::gpu::entmax::backward {
namespace {

constexpr int kRowWarps = kRowThreads / 32;

template <class T, int kLanes>
using RowProducts = float[kRowWarps][Group<T, kLanes>::kGroups][kLongRow];  // g

__device__ void zero(float (&x)[8]) {
#pragma unroll
  for (int d = 0; d < 8; ++d) x[d] = 0;
}

// A row with one entry: dQ and ds are 0 whatever V and dO are, so they are not read. NaN in the excess stays
// NaN.
template <class T, int kLanes>
__device__ __forceinline__ void lone_gradient(const BackwardProblem& p, const Group<T, kLanes>& lanes,
                                              const RowTile& rows, const RowSlot& slot) {
  const uint32_t row = rows.row(p, slot.in_tile);
  float ds = 0;
  if (slot.count == 1) {
    const uint32_t key = rows.first_key + p.support.columns[slot.pool], of_key = rows.of_key + slot.in_tile;
    const Entmax entmax(p, rows.head);
    const Weights x = entmax(p.support.excess[slot.pool]);
    const RowGradient gradient(p, entmax, {.w = x.w, .u = x.u}, 1);
    ds = gradient.score(x, 0);
    if (lanes.lane == 0)
      entries_of<T>(p)[begin_of(p, key, of_key >> p.slice_bits) + p.ranks[slot.pool]] = {
          p, {of_key, gradient.probability(x), ds}};
  }
  lanes.store(p.d_q, row, {ds, ds, ds, ds, ds, ds, ds, ds});
  if (p.d_alpha != nullptr && lanes.lane == 0) p.row_alphas[row] = ds;
}

// kLanes warps take a tile, each group a row.
template <class T, int kLanes, class Modifications>
__device__ __forceinline__ void tile_gradients(const BackwardProblem& p, int64_t warp,
                                               RowProducts<T, kLanes>& products) {
  using Lanes = Group<T, kLanes>;
  const int64_t tile = warp / kLanes;
  if (tile >= p.row_tiles) return;

  const RowSlot slot = p.row_slots[warp * Lanes::kGroups + threadIdx.x % 32 / kLanes];
  const RowTile rows(p, tile);
  const Lanes lanes(p);
  const uint32_t row = rows.row(p, slot.in_tile);
  const bool is_long = slot.count > kLongRow, writes = rows.has(p, slot.in_tile) && !is_long;
  const uint32_t n = is_long ? 0 : slot.count, most = __reduce_max_sync(kWarp, n);
  if (std::is_same_v<Modifications, Unmodified> && most <= 1) {  // as of half of the rows of some heads
    if (writes) lone_gradient<T, kLanes>(p, lanes, rows, slot);
    return;
  }

  // The lane's entry of a chunk. All loads of the first chunk are issued before any is used.
  struct Own {
    uint32_t key;
    float excess;
  };
  const uint32_t first_key = rows.first_key, of_key = rows.of_key + slot.in_tile,
                 slice = of_key >> p.slice_bits;
  const auto read_own = [&](uint32_t base) -> Own {  // past the last entry: the last one
    if (n == 0) return {first_key, 0};
    const int64_t at = slot.pool + min(base + lanes.owned(), n - 1);
    return {first_key + p.support.columns[at], p.support.excess[at]};
  };
  const char *const values = lanes.part_of(p.v), *const keys = lanes.part_of(p.k);
  const Entmax entmax(p, rows.head);
  const Modifications modifications(p, entmax, writes ? row : 0, rows.head);
  const Own first_own = read_own(0);
  typename Lanes::Flight flight{};
  float(&g)[kLongRow] = products[threadIdx.x / 32][threadIdx.x % 32 / kLanes];
  RowSums sums;
  if (most > 0) {
    float d_out[8];
    lanes.read_vector(p.d_out, writes ? row : 0, d_out);
    flight = lanes.start(keys, first_own.key, most);
    Own next = first_own;
    for (uint32_t base = 0; base < most; base += kChunk) {
      const Own own = next;
      if (base + kChunk < most) next = read_own(base + kChunk);
      const float product =
          modifications.d_p(own.key - first_key, lanes.products(values, own.key, most - base, d_out));
      const uint32_t mine = base + lanes.owned();
      if (mine >= n) continue;
      sums.add(entmax(own.excess), product, p.tau_offsets != nullptr);
      if (lanes.first_copy()) g[mine] = product;
    }
  }
  sums = {lanes.sum_entries(sums.w), lanes.sum_entries(sums.u), lanes.sum_entries(sums.ug)};
  __syncwarp();  // g

  if (modifications.has_sink()) sums.add(entmax(modifications.sink()), 0);
  const RowGradient gradient(p, entmax, sums, n + (modifications.has_sink() ? 1 : 0));
  float d_q[8] = {};
  Own next = first_own;
  for (uint32_t base = 0; base < most; base += kChunk) {
    const Own own = next;
    const bool more = base + kChunk < most;
    if (more) next = read_own(base + kChunk);
    const uint32_t mine = base + lanes.owned();
    const bool leaves = mine < n && lanes.first_copy();
    Entry entry{of_key, 0, 0};
    uint32_t place = 0;
    if (leaves)  // read early: there when ds is computed
      place = begin_of(p, own.key, slice) + p.ranks[slot.pool + mine];
    if (mine < n) {
      const Weights x = entmax(own.excess);
      entry.p = gradient.probability(x) * modifications.weight(own.key - first_key);
      entry.ds = gradient.score(x, g[mine]);
      if constexpr (std::is_same_v<Modifications, Modified>) {
        if (p.d_bias != nullptr && leaves) p.score_gradients[slot.pool + mine] = entry.ds;
      }
      entry.ds *= modifications.slope(own.excess, own.key - first_key);
    }
    lanes.add_rows(flight, keys, own.key, entry.ds, most - base, d_q);
    if (leaves) entries_of<T>(p)[place] = {p, entry};
    if (more) flight = lanes.start(keys, next.key, most - base - kChunk);
  }
  if (n == 0) zero(d_q);  // 0 times a key outside the support may be NaN
  if (writes) lanes.store(p.d_q, row, d_q);
  if constexpr (std::is_same_v<Modifications, Modified>) {
    if (writes && lanes.lane == 0 && p.row_sinks != nullptr)
      p.row_sinks[row] = sink_gradient(modifications, entmax, gradient);
  }
  if (p.d_alpha == nullptr) return;

  const AlphaGradient alpha(gradient, sums, writes ? given_shift(p, entmax, row) : 0.0f);
  float d_alpha = 0;
  for (uint32_t mine = lanes.owned(); mine < n; mine += kChunk) {
    const float x = p.support.excess[slot.pool + mine];
    d_alpha += alpha(x, entmax(x).u, gradient.centred(g[mine]));
  }
  d_alpha = lanes.sum_entries(d_alpha);
  if (modifications.has_sink())
    d_alpha += alpha(modifications.sink(), entmax(modifications.sink()).u, gradient.centred(0));
  if (writes && lanes.lane == 0) p.row_alphas[row] = d_alpha;
}

// Modifications: Modified or Unmodified. long_blocks: those that take rows with many entries.
template <class T, int kLanes, class Modifications>
__global__ void __launch_bounds__(kRowThreads, 6)
    row_gradients(const __grid_constant__ BackwardProblem p, const uint32_t long_blocks) {
  wait_for_kernels_before();
  __shared__ union {
    RowProducts<T, kLanes> products;
    LongRow<kLanes> of_long_row;
  } shared;
  if (blockIdx.x >= long_blocks) {
    const int64_t warp = int64_t{blockIdx.x - long_blocks} * kRowWarps + static_cast<int>(threadIdx.x) / 32;
    tile_gradients<T, kLanes, Modifications>(p, warp, shared.products);
    return;
  }
  const uint32_t rows = p.counters->long_rows;
  for (uint32_t i = blockIdx.x; i < rows; i += long_blocks)
    long_row_gradient<T, kLanes, Modifications>(p, p.long_rows[i], shared.of_long_row);
}

}  // namespace

void compute_rows(const BackwardProblem& p, Dtype dtype, StreamHandle stream) {
  for_element_and_lanes(dtype, p.head_dim, [&]<class T, int kLanes>() {
    const auto blocks = static_cast<uint32_t>((p.row_tiles * kLanes + kRowWarps - 1) / kRowWarps),
               long_blocks = static_cast<uint32_t>(
                   std::min<int64_t>(p.support.capacity / kLongRow + 1, kMostLongRowBlocks));
    const auto kernel =
        p.modified() ? row_gradients<T, kLanes, Modified> : row_gradients<T, kLanes, Unmodified>;
    launch("row_gradients", kernel, long_blocks + blocks, kRowThreads, stream, p, long_blocks);
  });
}

}  // namespace splash::gpu::entmax::backward
