#pragma once
// The anchor's sums where a key head has few rows, as in a step of decoding (sm_90's bulk copies). There the
// time is that of reading the keys, so they are read once, in 8 bits where the caller has them so: the scores
// stay in the workspace. Two kernels: the scores and, piece by piece, each row's largest score and sum; the
// pooled probabilities, in shared memory, and the selection from them. Longer lists are pooled by a kernel of
// their own before select.cuh's.
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
#include "gpu/kascade/select.cuh"

namespace splash::gpu::kascade {

constexpr int kStepThreads = 256, kStepWarps = kStepThreads / 32;
constexpr int kPoolChunk = 8 * kStepThreads;             // of pool_steps
constexpr int kPoolThreads = 1024, kMostPooled = 49152;  // of select_pooled; keys that shared memory holds

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
  int rows = 1, chunks = 1, rounds = 1;  // rows of a key head; chunks of its keys; those of a block
  float* scores = nullptr;               // [lists, rows, pitch], times log2(e)
  float2* partial = nullptr;  // [lists, chunks, warps, rows]: largest score, sum of 2^(score - largest)
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

// Blocks of score_steps that share a multiprocessor: shared memory has no room for 4.
template <int kDim, int kRowTiles>
constexpr int kStepBlocks = kRowTiles == 1                 ? 3
                            : kDim > 128 && kRowTiles == 2 ? 2
                                                           : 1;

// A warp asks for the rows of a group of keys before `end`, 16 bytes a thread. from: the head's first row;
// pitch: of the copy's rows. A bulk copy for each row takes longer to issue than DRAM to answer.
__device__ inline void copy_rows(const Problem& p, const TileAddress& at, const char* from, int row_bytes,
                                 int first, int end, unsigned char* to, int pitch) {
  const int lane = threadIdx.x % 32, keys = min(kKeyGroup, end - first);
  const uint32_t held = lane < keys ? p.row_of(at, first + lane) : 0;
#pragma unroll
  for (int two = 0; two < kKeyGroup; two += 2) {
    const int row = two + lane / 16;
    const uint64_t source = __shfl_sync(arch::kAllLanes, held, row);
    for (int column = lane % 16 * 16; column < row_bytes && row < keys; column += 256)
      arch::cp_async_16(to + row * pitch + column, from + source * (p.head_dim * 2) + column);
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
  const TileAddress at = p.address((slab.first + list) * p.row_blocks);
  const int row_bytes = p.head_dim * kBytes;
  const int first_chunk = static_cast<int>(blockIdx.x) * steps.rounds,
            last_chunk = min(first_chunk + steps.rounds, steps.chunks), missing = p.missing(at),
            first_key = p.first_key(at), end = min(p.kv_len - missing, last_chunk * kChunk),
            seen_by_all = min(end, p.last_key(at, 0) - missing + 1);
  const int64_t before = at.kv_head * (kBytes == 1 ? steps.k8_pitch : p.kv_len);  // keys of earlier heads
  const bool paged = kBytes == 2 && p.pages.table != nullptr;
  // The first key of a warp's copies, which are counted from the block's first on.
  const auto first_of = [&](int copy) {
    return (first_chunk + copy / kCopies) * kChunk + kKeyGroup * (kStepWarps * (copy % kCopies) + warp);
  };
  const auto load = [&](int copy) {
    const int first = first_of(copy), rows = min(kKeyGroup, end - first);
    if (rows <= 0) return;
    unsigned char* const to = shared.keys[warp][copy % kCopies];
    uint64_t* const arrived = &shared.arrived[warp][copy % kCopies];
    if (paged) {  // in a page keys of other heads may lie between two
      copy_rows(p, at, static_cast<const char*>(p.k) + p.first_row(at) * row_bytes, row_bytes, first, end, to,
                row_bytes);
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
  for (int copy = 0; copy < kCopies; ++copy) load(copy);
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
  float largest[kRowTiles][2], sum[kRowTiles][2];
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
                arch::pack_pair<__nv_bfloat16>(a, b);
            if (g == 0) steps.largest[of_list / kKeyGroup + in_list / kKeyGroup] = of_keys;
          }
        } else {
          sum[tile][e] += arch::exp2_approx(s[e] - shift) + arch::exp2_approx(s[2 + e] - shift);
        }
        largest[tile][e] = step_largest;
      }
    }
  };
  for (int chunk = first_chunk; chunk < last_chunk; ++chunk) {
#pragma unroll
    for (int tile = 0; tile < kRowTiles; ++tile) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        largest[tile][e] = -INFINITY;
        sum[tile][e] = 0;
      }
    }
    const int begin = (chunk - first_chunk) * kCopies;
    for (int copy = begin; copy < begin + kCopies && first_of(copy) < end; ++copy) {
      take_keys(copy);
      __syncwarp();  // all have read what the next copy overwrites
      load(copy + kCopies);
    }
    float2* const partial =
        steps.partial + ((int64_t{list} * steps.chunks + chunk) * kStepWarps + warp) * steps.rows;
#pragma unroll
    for (int tile = 0; tile < kRowTiles; ++tile) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float2 mine{largest[tile][e], sum[tile][e]};
#pragma unroll
        for (int lanes = 4; lanes < 32; lanes *= 2) {  // that share rows
          const float2 other{__shfl_xor_sync(arch::kAllLanes, mine.x, lanes),
                             __shfl_xor_sync(arch::kAllLanes, mine.y, lanes)};
          const float most = arch::larger_or_nan(mine.x, other.x), shift = most == -INFINITY ? 0.0f : most;
          mine = {most,
                  mine.y * arch::exp2_approx(mine.x - shift) + other.y * arch::exp2_approx(other.x - shift)};
        }
        const int row = 8 * tile + 2 * t + e;
        if (g == 0 && row < steps.rows) partial[row] = mine;
      }
    }
  }
}

// log2 of each row's sum of 2^score; +inf for a row without keys. Ends with a barrier.
template <int kThreads>
__device__ void find_step_normalizers(const StepRows& steps, int list, float (&normalizers)[kMostStepRows]) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int pieces = steps.chunks * kStepWarps;
  const float2* const partial = steps.partial + int64_t{list} * pieces * steps.rows;
  for (int row = warp; row < steps.rows; row += kThreads / 32) {
    float most = -INFINITY, sum = 0;
    for (int piece = lane; piece < pieces; piece += 32)
      most = arch::larger_or_nan(most, partial[piece * steps.rows + row].x);
    most = arch::warp_max_or_nan(most);
    const float shift = most == -INFINITY ? 0.0f : most;
    for (int piece = lane; piece < pieces; piece += 32) {
      const float2 part = partial[piece * steps.rows + row];
      sum += part.y * arch::exp2_approx(part.x - shift);
    }
    sum = arch::warp_sum(sum);
    if (lane == 0) normalizers[row] = most == -INFINITY ? INFINITY : most + log2f(sum);
  }
  __syncthreads();
}

// Keys that a thread pools at once: 16 bytes of a row.
template <int kBytes>
constexpr int kPooledKeys = 8 / kBytes;

// Writes the probabilities of some keys, summed over the rows. A row without keys, or with NaN, has none.
// What lies behind the last key, up to the pitch, is not looked at.
template <int kBytes>
__device__ inline void pool_keys(const StepRows& steps, int list, int64_t pitch, int key,
                                 const float (&normalizers)[kMostStepRows], float4* to) {
  float pooled[kPooledKeys<kBytes>] = {};
#pragma unroll 4
  for (int row = 0; row < steps.rows; ++row) {
    const int64_t at = (int64_t{list} * steps.rows + row) * pitch + key;
    if constexpr (kBytes == 1) {
      const uint4 eight = *reinterpret_cast<const uint4*>(steps.weights + at);
      const float factor = arch::exp2_approx(steps.largest[at / kKeyGroup] - normalizers[row]);
      const uint32_t pairs[4] = {eight.x, eight.y, eight.z, eight.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        pooled[2 * i] += fmaxf(__uint_as_float(pairs[i] << 16) * factor, 0.0f);
        pooled[2 * i + 1] += fmaxf(__uint_as_float(pairs[i] & 0xFFFF0000u) * factor, 0.0f);
      }
    } else {
      const float4 four = *reinterpret_cast<const float4*>(steps.scores + at);
      const float scores[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) pooled[i] += fmaxf(arch::exp2_approx(scores[i] - normalizers[row]), 0.0f);
    }
  }
#pragma unroll
  for (int i = 0; i < kPooledKeys<kBytes> / 4; ++i)
    to[i] = {pooled[4 * i], pooled[4 * i + 1], pooled[4 * i + 2], pooled[4 * i + 3]};
}

// Each key's probabilities, where shared memory does not hold a list's.
template <int kBytes>
__global__ void __launch_bounds__(kStepThreads)
    pool_steps(const __grid_constant__ AnchorSlab slab, const StepRows steps) {
  entmax::wait_for_kernels_before();
  __shared__ float normalizers[kMostStepRows];
  const int list = blockIdx.y, first = static_cast<int>(blockIdx.x) * kPoolChunk,
            end = min(slab.visible_of(list), first + kPoolChunk);
  find_step_normalizers<kStepThreads>(steps, list, normalizers);
  auto* const pooled = reinterpret_cast<float4*>(slab.pooled + int64_t{list} * slab.pitch);
  constexpr int kKeys = kPooledKeys<kBytes>;
  for (int key = first + kKeys * static_cast<int>(threadIdx.x); key < end; key += kKeys * kStepThreads)
    pool_keys<kBytes>(steps, list, slab.pitch, key, normalizers, pooled + key / 4);
}

// The same in shared memory, and the list from it: one block per list of the slab.
template <int kBytes>
__global__ void __launch_bounds__(kPoolThreads, 1)
    select_pooled(const __grid_constant__ AnchorSlab slab, const StepRows steps, int32_t* lists) {
  entmax::wait_for_kernels_before();
  extern __shared__ float4 pooled[];  // of kv_len keys, up to the pitch
  __shared__ SelectShared<kPoolThreads> shared;
  __shared__ float normalizers[kMostStepRows];
  find_step_normalizers<kPoolThreads>(steps, blockIdx.x, normalizers);
  constexpr int kKeys = kPooledKeys<kBytes>;
  const int end = slab.visible_of(blockIdx.x);
  for (int key = kKeys * threadIdx.x; key < end; key += kKeys * kPoolThreads)
    pool_keys<kBytes>(steps, blockIdx.x, slab.pitch, key, normalizers, pooled + key / 4);
  __syncthreads();
  write_largest(slab, reinterpret_cast<const float*>(pooled), shared, lists);
}

}  // namespace splash::gpu::kascade
