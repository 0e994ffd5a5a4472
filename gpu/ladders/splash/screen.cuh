#pragma once
// The parts of the screen (rung 7): which tiles a block visits, its queries in registers, and how a warp
// bounds and lists the few products that may matter. A thread holds two rows of wgmma's 64 queries by 64
// keys: acc[4 j + 2 half + e] is key 8 j + 2 (lane % 4) + e of the row lane / 4 + 8 half of its warp.

#include "gpu/ladders/splash/screen_list.cuh"
#include "gpu/ladders/splash/screen_round.cuh"

namespace splash::gpu::sparse {

constexpr int kScreenWarps = 8, kWarpRows = kScreenTile / kScreenWarps;
constexpr int kScreenStages = 3;

// What warp 0, which loads, tells the other warps about a tile.
struct alignas(16) SeenTile {
  int first_key;  // -1: there are no more
  int in_full;    // all queries see all of its keys
  float2 norms;   // with first_key -1: the largest norms of all tiles seen
};

// Walks the key tiles that some query of a block sees, in rising order. Looks at 32 at a time, one per lane.
struct TileWalk {
  const float2* norms;             // [tiles] of the key head
  const int2* positions;           // [tiles] of the head, or null
  int tiles, first_end, last_end;  // the first query sees keys below first_end, the last below last_end
  int smallest = 0, largest = 0;   // of the queries' positions
  int base = -32;
  uint32_t left = 0, whole = 0;  // bits: tiles still to come; tiles that all queries see in full
  int2 largest_norms{};          // so far; as integers, which put NaN last

  // All lanes of a warp call it.
  __device__ __forceinline__ SeenTile next() {
    while (left == 0) {
      base += 32;
      if (base >= tiles) return {-1, 0, {__int_as_float(largest_norms.x), __int_as_float(largest_norms.y)}};
      const int tile = base + static_cast<int>(threadIdx.x) % 32;
      const bool there = tile < tiles && tile * kScreenTile < last_end;
      const int2 range = there && positions != nullptr ? positions[tile] : int2{smallest, smallest};
      const bool seen = there && range.x <= largest;
      const float2 mine = seen ? norms[tile] : float2{};
      left = __ballot_sync(kWarp, seen);
      whole = __ballot_sync(kWarp, (tile + 1) * kScreenTile <= first_end && range.y <= smallest);
      largest_norms.x = max(largest_norms.x, __reduce_max_sync(kWarp, __float_as_int(mine.x)));
      largest_norms.y = max(largest_norms.y, __reduce_max_sync(kWarp, __float_as_int(mine.y)));
    }
    const int bit = __ffs(static_cast<int>(left)) - 1;
    left &= left - 1;
    return {(base + bit) * kScreenTile, static_cast<int>(whole >> bit & 1), {}};
  }
};

struct Loader {
  const unsigned char* keys;  // the key head's first tile
  TileWalk walk;
  int loads = 0, rounds = 0;
};

template <int kPanels>
struct ScreenShared {
  alignas(1024) unsigned char k[kScreenStages][kPanels * kPanelBytes];
  float scores[kScreenTile][kCandidatePitch];
  int keys[kScreenTile][kCandidatePitch];
  SeenTile tiles[kScreenStages];
  Loader loader;
  uint64_t full[kScreenStages], empty[kScreenStages];
};

// A lane's share of its warp's 16 queries, rounded, as wgmma takes them from registers; also the norms of its
// two rows.
template <int kPanels>
struct Queries {
  uint32_t rounded[4 * kPanels][4];
  float2 norms[2];  // |q - q'|, |q|

  __device__ __forceinline__ void load(const Problem& p, const Head& h, int query) {
    const float sign = copysignf(1.0f, p.scale);
    float square[2] = {}, error_square[2] = {};
#pragma unroll
    for (int i = 0; i < 16 * kPanels; ++i) {
      const int half = i % 2, d = 8 * (i / 2) + 2 * quad_lane();
      float2 x{};
      if (query + 8 * half < p.q_len && d < p.head_dim)
        x = *reinterpret_cast<const float2*>(h.q + static_cast<int64_t>(query + 8 * half) * p.head_dim + d);
      rounded[i / 4][i % 4] = round_pair(sign * x.x, sign * x.y, square[half], error_square[half]);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half)
      norms[half] = norms_of(quad_sum(error_square[half]), quad_sum(square[half]));
  }
};

// Sets the products of keys that a row does not see to -inf. acc holds 64 keys, 16 per row in this lane.
__device__ __forceinline__ void hide_unseen(const Problem& p, const Head& h, int query, int first_key,
                                            float (&acc)[32]) {
  const Sight sight[2] = {sight_of(p, h, query), sight_of(p, h, query + 8)};
  int positions[16] = {};
  if (h.k_positions != nullptr) {
#pragma unroll
    for (int i = 0; i < 16; ++i)
      positions[i] = h.k_positions[min(first_key + 8 * (i / 2) + 2 * quad_lane() + i % 2, p.kv_len - 1)];
  }
#pragma unroll
  for (int i = 0; i < 32; ++i) {
    const int pair = 2 * (i / 4) + i % 2, key = first_key + 8 * (i / 4) + 2 * quad_lane() + i % 2;
    const Sight& s = sight[i / 2 % 2];
    acc[i] = key < s.end && positions[pair] <= s.position ? acc[i] : -INFINITY;
  }
}

// The four largest products that a lane took in, at most one of each 64 keys. The lanes of a row
// that count hold products of different keys.
struct TopScores {
  float largest[4] = {-INFINITY, -INFINITY, -INFINITY, -INFINITY};

  // `lanes` lanes of the quad insert one product each.
  template <int kHalf>
  __device__ __forceinline__ void insert(const float (&acc)[32], int lanes) {
    float most[4] = {-INFINITY, -INFINITY, -INFINITY, -INFINITY};  // four, for short dependence chains
#pragma unroll
    for (int i = 0; i < 16; ++i) most[i % 4] = fmaxf(most[i % 4], acc[4 * (i / 2) + 2 * kHalf + i % 2]);
    float x = fmaxf(fmaxf(most[0], most[1]), fmaxf(most[2], most[3]));
    if (lanes < 4) x = fmaxf(x, __shfl_xor_sync(kWarp, x, 1));
    if (lanes < 2) x = fmaxf(x, __shfl_xor_sync(kWarp, x, 2));
#pragma unroll
    for (float& y : largest) {
      const float lesser = fminf(x, y);
      y = fmaxf(x, y);
      x = lesser;
    }
  }
};

// How many lanes of a quad may insert a product of the same 64 keys: so many that at most k_keep keys of a
// block count.
__device__ __forceinline__ int lanes_that_count(const Problem& p) {
  return min(4, p.k_keep * 64 / max(p.block, 64));
}

// Sets the bounds of both rows, after which they can list. A bound is the tau of the largest products minus
// the margin. If `lanes` is 0, it rests on the largest product alone. `keys`: the largest norms of the keys
// seen.
__device__ __forceinline__ void start_lists(const Entmax& entmax, float scale, int lanes,
                                            TopScores (&tops)[2], const float2 (&queries)[2],
                                            const float2& keys, ScreenRow (&rows)[2]) {
  const float gain = entmax.gain * fabsf(scale);
  const bool mine = lanes == 4 || quad_lane() % (lanes == 1 ? 4 : 2) == 0;
  float offset[2] = {-1, -1};
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    rows[half].reference = quad_max(tops[half].largest[0]);
#pragma unroll
    for (float& x : tops[half].largest) x = mine ? gain * (x - rows[half].reference) : -INFINITY;
  }
  if (lanes > 0) {
    solve(entmax, 8, offset, [&](int half, const auto& use) {
#pragma unroll
      for (const float z : tops[half].largest) use(z);
    });
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    ScreenRow& row = rows[half];
    // 2^-15 |q| |k| bounds the rounding of both sums, the tensor cores' and fp32's.
    row.margin = (queries[half].x + 0x1p-15f * queries[half].y) * keys.y +
                 (queries[half].x + queries[half].y) * keys.x;
    row.bound = -INFINITY;
    if (row.reference > -INFINITY)
      row.bound =
          row.reference + __fdividef(offset[half] - 1e-5f, gain) - 1e-6f * fabsf(row.reference) - row.margin;
    const uint32_t exponent = __float_as_uint(queries[half].y * keys.y) >> 23;
    row.anchor = __uint_as_float((exponent + 2) << 23 | 1u << 22);
    if (!(row.margin < 1e30f)) row.give_up();  // bfloat16 can bound nothing here
  }
}

// Appends those of 64 keys whose products exceed the bounds of the two rows. All lanes of a warp call it.
__device__ __forceinline__ void list_above(const float (&acc)[32], int first_key, ScreenRow (&rows)[2]) {
  // Tests the sign of the difference, two instructions per product, in four short chains.
  uint32_t bits[4] = {};
#pragma unroll
  for (int i = 0; i < 32; ++i) {
    const int half = i / 16, n = i % 16;
    const float below = rows[half].bound - rows[half].margin - acc[4 * (n / 2) + 2 * half + n % 2];
    bits[i / 8] = __funnelshift_l(__float_as_uint(below), bits[i / 8], 1);
  }
  // From the highest bit down: the 16 products of the first row, then those of the second.
  uint32_t left = bits[0] << 24 | bits[1] << 16 | bits[2] << 8 | bits[3];
  if (!__any_sync(kWarp, left != 0)) return;
  // Both rows' counts in one number: the first's in the low half.
  const uint32_t mine = __popc(left >> 16) | __popc(left & 0xFFFFu) << 16;
  const uint32_t next = __shfl_xor_sync(kWarp, mine, 1), pair = mine + next;
  const uint32_t others = __shfl_xor_sync(kWarp, pair, 2), all = pair + others;
  const uint32_t before = (quad_lane() & 1 ? next : 0) + (quad_lane() & 2 ? others : 0);
  int* place[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    ScreenRow& row = rows[half];
    const int more = static_cast<int>(all >> 16 * half & 0xFFFFu);
    place[half] = row.keys + row.count + (before >> 16 * half & 0xFFFFu);
    row.count += more;
    if (row.count > kCandidates) {
      row.give_up();
      left &= half == 0 ? 0xFFFFu : 0xFFFF0000u;
    }
  }
  while (left != 0) {
    const int bit = __clz(static_cast<int>(left)), i = bit % 16;
    left &= ~(0x80000000u >> bit);
    *(bit < 16 ? place[0]++ : place[1]++) = first_key + 8 * (i / 2) + 2 * quad_lane() + i % 2;
  }
  __syncwarp();
}

}  // namespace splash::gpu::sparse
