#pragma once
// The scores of an anchor where a key head has few rows, as in a step of decoding (sm_90's bulk copies).
// There the time is that of reading the keys, so they are read once, in 8 bits where the caller has them so:
// the scores stay in the workspace, and each row's largest score and sum, piece by piece. pool.cuh makes the
// lists of them.
//
// A warp multiplies 16 keys, which lie behind one another and come by one bulk copy, by 8 rows with mma.sync.
// Keys are the left operand: the sum over head_dim may run in any order, so that the 16 bytes that a thread
// reads at once are the elements of two products (of four, where keys have 8 bits: they become elements of 16
// bits in registers).
//
// Of keys in 8 bits not scores but 2^(score - largest of the 16 keys) stay in the workspace, in bfloat16:
// their rounding, 2^-9, is a tenth of what rounded keys change in a probability, and half as much is written
// and read.

#include "gpu/arch/bulk_copy.cuh"
#include "gpu/arch/byte_elements.cuh"
#include "gpu/arch/cp_async.cuh"
#include "gpu/arch/mbarrier.cuh"
#include "gpu/arch/mma.cuh"
#include "gpu/kascade/kascade.h"
#include "gpu/kascade/scores.cuh"

namespace splash::gpu::kascade {

constexpr int kStepThreads = 256, kStepWarps = kStepThreads / 32;

// kBytes: of a number of a key. As many bytes are under way with 8 bits as with 16, and with 256 numbers a
// key as with 128.
constexpr int step_copies(int64_t head_dim, int bytes) {  // of a warp
  return (head_dim > 128 ? 2 : 4) / bytes;
}
constexpr int step_chunk(int64_t head_dim, int bytes) {  // keys that a block of score_steps copies at once
  return kKeyGroup * kStepWarps * step_copies(head_dim, bytes);
}

template <int kDim, int kBytes>
struct StepShared {
  static constexpr int kCopies = step_copies(kDim, kBytes);
  alignas(128) unsigned char keys[kStepWarps][kCopies][kKeyGroup * kDim * kBytes];
  float scales[kStepWarps][kCopies][kKeyGroup];  // of keys in 8 bits
  uint64_t arrived[kStepWarps][kCopies];
};

// What a launch works on, beside the slab's lists.
struct StepRows {
  int rows = 1, chunks = 1;      // rows of a key head; chunks of its keys
  int rounds = 1, blocks = 1;    // chunks of a block of score_steps; such blocks of a list
  float* scores = nullptr;       // [lists, rows, pitch], times log2(e)
  float2* partial = nullptr;     // [lists, blocks, warps, rows]: largest score, sum of 2^(score - largest)
  float* normalizers = nullptr;  // [lists, rows]: log2 of a row's sum of 2^score
  __nv_bfloat16* weights = nullptr;  // [lists, rows, pitch], in place of scores, of keys in 8 bits
  float* largest = nullptr;          // [lists, rows, pitch / 16]: of 16 keys, from which their weights count
  const int8_t* k8 = nullptr;
  const float* k8_scales = nullptr;
  int64_t k8_pitch = 0;  // keys from a head to the next
};

// The piece of 8 numbers that a thread, t of its quad, holds of a row, by its first column.
template <int kBytes>
__device__ inline int piece_column(int j, int t) {
  return kBytes == 1 ? 64 * (j / 2) + 16 * t + 8 * (j % 2) : 32 * j + 8 * t;
}

// The key of a group that is row g of a product's half: of those in 8 bits a thread holds two neighbours.
template <int kBytes>
__device__ inline int key_of_group(int half, int g) {
  return kBytes == 1 ? 2 * g + half : 8 * half + g;
}

// Of a row's scores, of some keys or of all.
struct RowSum {
  float largest = -INFINITY, sum = 0;  // of 2^(score - largest)

  template <int kCount>
  __device__ void add(const float2 (&parts)[kCount]) {
    float most = largest;
#pragma unroll
    for (const float2& part : parts) most = arch::larger_or_nan(most, part.x);
    const float shift = most == -INFINITY ? 0.0f : most;
    sum *= arch::exp2_approx(largest - shift);
#pragma unroll
    for (const float2& part : parts) sum += part.y * arch::exp2_approx(part.x - shift);
    largest = most;
  }
  // Of each kFirst-th lane of the warp.
  template <int kFirst>
  __device__ void add_lanes() {
#pragma unroll
    for (int lanes = kFirst; lanes < 32; lanes *= 2) {
      const float2 other[1] = {
          {__shfl_xor_sync(arch::kAllLanes, largest, lanes), __shfl_xor_sync(arch::kAllLanes, sum, lanes)}};
      add(other);
    }
  }
  __device__ float normalizer() const {  // log2 of the sum of 2^score; +inf for a row without keys
    return largest == -INFINITY ? INFINITY : largest + log2f(sum);
  }
};

// Blocks of score_steps that share a multiprocessor: shared memory has no room for 4.
template <int kDim, int kRowTiles>
constexpr int kStepBlocks = kRowTiles == 1                 ? 3
                            : kDim > 128 && kRowTiles == 2 ? 2
                                                           : 1;

// Rows of K and V from one key of a group to the next: in a page other heads' keys may lie between two.
__device__ inline int64_t rows_apart(const Problem& p) {
  return p.pages.table == nullptr ? 1 : p.pages.token_rows;
}

// The row of a group's first key. A group lies in one page.
__device__ inline int64_t row_of_group(const Problem& p, const TileAddress& at, int first, int end) {
  return p.first_row(at) + (first < end ? p.row_of(at, first) : 0);
}

// A warp asks for rows of up to kDims numbers, one for each key of a group, 16 bytes a thread. A bulk copy
// for each would take longer to issue than DRAM to answer. from, step: the first row's bytes and those to the
// next; to: where a row goes.
template <int kDims, class To>
__device__ inline void copy_group(const char* from, int64_t step, int row_bytes, int keys, To&& to) {
  constexpr int kLanes = kDims / 8, kAtOnce = 32 / kLanes;  // threads of a row; rows at once
  const int lane = threadIdx.x % 32, column = lane % kLanes * 16, of_lane = lane / kLanes;
  if (column >= row_bytes) return;
#pragma unroll
  for (int i = 0; i < kKeyGroup / kAtOnce; ++i) {
    const int row = i * kAtOnce + of_lane;
    if (row < keys) arch::cp_async_16(to(row) + column, from + row * step + column);
  }
}

// kRowTiles: of 8 rows each.
template <class Element, int kDim, int kRowTiles, int kBytes>
__global__ void __launch_bounds__(kStepThreads, kStepBlocks<kDim, kRowTiles>)
    score_steps(const __grid_constant__ AnchorSlab slab, const StepRows steps) {
  constexpr int kCopies = step_copies(kDim, kBytes), kChunk = step_chunk(kDim, kBytes);
  constexpr int kColumns = kDim / 32;                     // pieces of a row that a thread holds, of queries
  constexpr int kKeyColumns = kDim > 128 ? 2 : kColumns;  // of keys, at once
  extern __shared__ __align__(1024) unsigned char shared_memory[];
  auto& shared = *reinterpret_cast<StepShared<kDim, kBytes>*>(shared_memory);
  const Problem& p = slab.problem;
  entmax::wait_for_kernels_before();
  // The compiler knows the warp's number, and what is made of it, to be the same in all lanes.
  const int list = blockIdx.y, warp = __shfl_sync(arch::kAllLanes, static_cast<int>(threadIdx.x) / 32, 0),
            lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const TileAddress at = slab.address_of(list);
  const int row_bytes = p.head_dim * kBytes;
  const int first_chunk = static_cast<int>(blockIdx.x) * steps.rounds,
            last_chunk = min(first_chunk + steps.rounds, steps.chunks), missing = p.missing(at),
            first_key = p.first_key(at), end = min(p.kv_len - missing, last_chunk * kChunk),
            seen_by_all = min(end, p.last_key(at, 0) - missing + 1);
  const int64_t before = at.kv_head * (kBytes == 1 ? steps.k8_pitch : p.kv_len);  // keys of earlier heads
  const bool paged = kBytes == 2 && p.pages.table != nullptr;
  // The first key of a warp's copies, which are counted from the block's first on.
  const auto first_of = [&](int copy) {
    return first_chunk * kChunk + kKeyGroup * (kStepWarps * copy + warp);
  };
  // Where keys lie in pages: the row of a copy's first, which is read long before it is needed.
  const auto row_of = [&](int copy) { return paged ? row_of_group(p, at, first_of(copy), end) : 0; };
  const auto load = [&](int copy, int64_t row) {
    const int first = first_of(copy), rows = min(kKeyGroup, end - first);
    if (rows <= 0) return;
    unsigned char* const to = shared.keys[warp][copy % kCopies];
    uint64_t* const arrived = &shared.arrived[warp][copy % kCopies];
    if (paged) {
      copy_group<kDim>(static_cast<const char*>(p.k) + row * row_bytes, rows_apart(p) * row_bytes, row_bytes,
                       rows, [&](int of_row) { return to + of_row * row_bytes; });
      arch::cp_async_arrive(arrived);
    } else if (lane == 0) {
      // Few keys in 8 bits may be no multiple of 16 bytes; the pitch has room for whole groups.
      const int bytes = (kBytes == 1 ? kKeyGroup : rows) * row_bytes;
      const int scale_bytes = kBytes == 1 ? sizeof(shared.scales[warp][0]) : 0;
      const void* const keys = kBytes == 1 ? static_cast<const void*>(steps.k8) : p.k;
      arch::mbarrier_arrive_expect(arrived, bytes + scale_bytes);
      arch::bulk_load(to, static_cast<const char*>(keys) + (before + first) * row_bytes, bytes, arrived);
      if constexpr (kBytes == 1) {
        arch::bulk_load(shared.scales[warp][copy % kCopies], steps.k8_scales + before + first, scale_bytes,
                        arrived);
      }
    }
  };
  if (lane == 0) {
    for (int copy = 0; copy < kCopies; ++copy)
      arch::mbarrier_init(&shared.arrived[warp][copy], paged ? 32 : 1);
    arch::mbarrier_init_fence();
  }
  __syncwarp();
  for (int copy = 0; copy < kCopies; ++copy) load(copy, row_of(copy));
  const float scale = p.negative_scale ? -p.scale : p.scale;
  const auto piece = [&](const void* row, int j) {  // zeros behind the row's end
    const int column = piece_column<kBytes>(j, t);
    return column < p.head_dim ? reinterpret_cast<const uint4*>(row)[column / 8] : uint4{};
  };
  // Of a row of bytes, which begins at a multiple of 8 bytes, those of pieces 2j and 2j + 1.
  const auto two_pieces = [&](const unsigned char* row, int j) {
    const int column = piece_column<1>(2 * j, t);
    if (p.head_dim % 16 == 0)
      return column < p.head_dim ? *reinterpret_cast<const uint4*>(row + column) : uint4{};
    uint2 low{}, high{};
    if (column < p.head_dim) low = *reinterpret_cast<const uint2*>(row + column);
    if (column + 8 < p.head_dim) high = *reinterpret_cast<const uint2*>(row + column + 8);
    return uint4{low.x, low.y, high.x, high.y};
  };
  uint4 q[kRowTiles][kColumns];  // row g of each tile
#pragma unroll
  for (int tile = 0; tile < kRowTiles; ++tile) {
    const int row = 8 * tile + g;  // token row % q_len of head row / q_len
    const int64_t from = (at.kv_head * p.group + row / p.q_len) * p.q_len + row % p.q_len;
#pragma unroll
    for (int j = 0; j < kColumns; ++j)
      q[tile][j] =
          row < steps.rows ? piece(static_cast<const Element*>(p.q) + from * p.head_dim, j) : uint4{};
  }
  int last[kRowTiles][2];  // key that a row sees
#pragma unroll
  for (int tile = 0; tile < kRowTiles; ++tile) {
#pragma unroll
    for (int e = 0; e < 2; ++e) last[tile][e] = p.last_key(at, (8 * tile + 2 * t + e) % p.q_len) - missing;
  }
  float largest[kRowTiles][2], sum[kRowTiles][2] = {};
#pragma unroll
  for (auto& of_tile : largest) of_tile[0] = of_tile[1] = -INFINITY;
  const int64_t of_list = int64_t{list} * steps.rows * slab.pitch;
  const auto take_keys = [&](int copy) {
    const int begin = first_of(copy), place = copy % kCopies;
    const bool hides = begin < first_key || begin + kKeyGroup > seen_by_all;
    arch::mbarrier_wait(&shared.arrived[warp][place], copy / kCopies % 2);
    uint4 k[2][kKeyColumns];  // what lies behind the last key is hidden below
    const auto read_keys = [&](int first) {
      const unsigned char* rows[2];
#pragma unroll
      for (int half = 0; half < 2; ++half)
        rows[half] = shared.keys[warp][place] + key_of_group<kBytes>(half, g) * row_bytes;
      if constexpr (kBytes == 1) {
        uint4 bytes[2][kKeyColumns / 2];
        const auto read_bytes = [&](auto read) {
#pragma unroll
          for (int i = 0; i < kKeyColumns; ++i) bytes[i % 2][i / 2] = read(rows[i % 2], first / 2 + i / 2);
        };
        if (p.head_dim == kDim) {  // without a branch for each
          read_bytes([&](const unsigned char* row, int j) {
            return *reinterpret_cast<const uint4*>(row + piece_column<1>(2 * j, t));
          });
        } else {
          read_bytes(two_pieces);
        }
#pragma unroll
        for (int i = 0; i < kKeyColumns; ++i) {
          const uint4& four = bytes[i % 2][i / 2];
          const uint2 a = arch::elements_of_bytes<Element>(four.x),
                      b = arch::elements_of_bytes<Element>(four.y),
                      c = arch::elements_of_bytes<Element>(four.z),
                      d = arch::elements_of_bytes<Element>(four.w);
          k[i % 2][i / 2 * 2] = {a.x, a.y, b.x, b.y};
          k[i % 2][i / 2 * 2 + 1] = {c.x, c.y, d.x, d.y};
        }
      } else {
#pragma unroll
        for (int i = 0; i < 2 * kKeyColumns; ++i) k[i % 2][i / 2] = piece(rows[i % 2], first + i / 2);
      }
    };
    if constexpr (kKeyColumns == kColumns) read_keys(0);
#pragma unroll
    for (int tile = 0; tile < kRowTiles; ++tile) {
      float s[4] = {};  // the keys of g, rows 2t and 2t + 1
#pragma unroll
      for (int j = 0; j < kColumns; ++j) {
        const int at_once = j % kKeyColumns;
        if (kKeyColumns < kColumns && at_once == 0) read_keys(j);
        const uint4 &low = k[0][at_once], &high = k[1][at_once], &of_q = q[tile][j];
        arch::mma_m16n8k16<Element>(s, {low.x, high.x, low.y, high.y}, of_q.x, of_q.y);
        arch::mma_m16n8k16<Element>(s, {low.z, high.z, low.w, high.w}, of_q.z, of_q.w);
      }
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int row = 8 * tile + 2 * t + e, in_list = row * static_cast<int>(slab.pitch) + begin;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int in_group = key_of_group<kBytes>(half, g), key = begin + in_group;
          float& score = s[2 * half + e];
          if constexpr (kBytes == 1) score *= shared.scales[warp][place][in_group];
          score *= scale;
          if (hides && (key >= end || key < first_key || key > last[tile][e])) score = -INFINITY;
          if (kBytes == 2 && row < steps.rows && key < end)
            steps.scores[of_list + in_list + in_group] = score;
        }
        float of_keys = arch::larger_or_nan(s[e], s[2 + e]);
        if constexpr (kBytes == 1) {
#pragma unroll
          for (int lanes = 4; lanes < 32; lanes *= 2)
            of_keys = arch::larger_or_nan(of_keys, __shfl_xor_sync(arch::kAllLanes, of_keys, lanes));
        }
        const float step_largest = arch::larger_or_nan(largest[tile][e], of_keys);
        const float shift = step_largest == -INFINITY ? 0.0f : step_largest;
        sum[tile][e] *= arch::exp2_approx(largest[tile][e] - shift);
        if constexpr (kBytes == 1) {
          const float from = of_keys == -INFINITY ? 0.0f : of_keys;
          const float a = arch::exp2_approx(s[e] - from), b = arch::exp2_approx(s[2 + e] - from);
          sum[tile][e] += (a + b) * arch::exp2_approx(of_keys - shift);
          if (row < steps.rows) {  // up to the pitch; those behind the last key are 0
            *reinterpret_cast<uint32_t*>(steps.weights + of_list + in_list + 2 * g) =
                arch::pack_pair<__nv_bfloat16>(fmaxf(a, 0.0f), fmaxf(b, 0.0f));  // never NaN
            if (g == 0) steps.largest[of_list / kKeyGroup + in_list / kKeyGroup] = of_keys;
          }
        } else {
          sum[tile][e] += arch::exp2_approx(s[e] - shift) + arch::exp2_approx(s[2 + e] - shift);
        }
        largest[tile][e] = step_largest;
      }
    }
  };
  for (int copy = 0; first_of(copy) < end; ++copy) {
    const int64_t next_row = row_of(copy + kCopies);
    take_keys(copy);
    __syncwarp();  // all have read what the next copy overwrites
    load(copy + kCopies, next_row);
  }
  float2* const partial =
      steps.partial + ((int64_t{list} * steps.blocks + blockIdx.x) * kStepWarps + warp) * steps.rows;
#pragma unroll
  for (int tile = 0; tile < kRowTiles; ++tile) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      RowSum mine{largest[tile][e], sum[tile][e]};
      mine.add_lanes<4>();  // that share rows
      const int row = 8 * tile + 2 * t + e;
      if (g == 0 && row < steps.rows) partial[row] = {mine.largest, mine.sum};
    }
  }
}

}  // namespace splash::gpu::kascade
