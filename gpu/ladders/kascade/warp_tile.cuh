#pragma once
// One warp multiplies its 16 rows by tiles of gathered keys with mma.sync (sm_80). head_dim is padded to 128
// with zeros. Each row of shared memory is 16 bytes longer than that, so that the eight rows of an ldmatrix
// matrix lie in different banks.

#include "gpu/arch/ldmatrix.cuh"
#include "gpu/arch/mma.cuh"
#include "gpu/ladders/kascade/rung.cuh"

namespace splash::gpu::kascade {

constexpr int kDim = 128, kPitch = kDim + 8, kChunks = kDim / 8;  // elements; 16-byte chunks per row

// Calls copy(destination, source, valid) for each 16-byte chunk of `rows` rows. source_row(row) is the row of
// `tensor` to copy, or -1 for a row of zeros.
template <class Element, class SourceRow, class Copy>
__device__ void for_each_chunk(Element* tile, const void* tensor, int rows, int head_dim,
                               SourceRow source_row, Copy copy) {
#pragma unroll 4
  for (int i = threadIdx.x; i < rows * kChunks; i += blockDim.x) {
    const int row = i / kChunks, column = i % kChunks * 8;
    const int64_t source = source_row(row);
    const bool valid = source >= 0 && column < head_dim;
    const Element* const from =
        static_cast<const Element*>(tensor) + (valid ? source * head_dim + column : 0);
    copy(tile + row * kPitch + column, from, valid);
  }
}

// A copy through registers, with ordinary loads and stores.
struct PlainCopy {
  template <class Element>
  __device__ void operator()(Element* to, const Element* from, bool valid) const {
    *reinterpret_cast<uint4*>(to) = valid ? *reinterpret_cast<const uint4*>(from) : uint4{0, 0, 0, 0};
  }
};

template <class Element, class AProblem, class Copy = PlainCopy>
__device__ void load_queries(Element* tile, const AProblem& p, const TileAddress& at, int rows,
                             Copy copy = {}) {
  for_each_chunk(
      tile, p.q, rows, p.head_dim, [&](int row) { return p.query_row(at, row); }, copy);
}

// Loads the rows of K or V (`tensor`) that entries [begin, begin + kKeys) of the tile's key list name.
// Entries from `visible` on give zeros.
template <int kKeys, class Element, class AProblem, class Copy = PlainCopy>
__device__ void gather(Element* tile, const void* tensor, const AProblem& p, const TileAddress& at, int begin,
                       int visible, Copy copy = {}) {
  const int32_t* const keys = p.keys(at) + begin;
  const auto source = [&](int row) {
    return begin + row < visible ? at.kv_head * p.kv_len + keys[row] : int64_t{-1};
  };
  for_each_chunk(tile, tensor, kKeys, p.head_dim, source, copy);
}

// The keys and values that a thread block works on in one iteration.
template <class Element, int kKeys>
struct KeyTile {
  Element k[kKeys * kPitch], v[kKeys * kPitch];
  int32_t keys[kKeys];

  template <class AProblem, class Copy = PlainCopy>
  __device__ void load(const AProblem& p, const TileAddress& at, int begin, int visible, Copy copy = {}) {
    gather<kKeys>(k, p.k, p, at, begin, visible, copy);
    gather<kKeys>(v, p.v, p, at, begin, visible, copy);
    for (int i = threadIdx.x; i < kKeys; i += blockDim.x)
      keys[i] = begin + i < visible ? p.keys(at)[begin + i] : kHiddenKey;
  }
};

// Unroll factors of the products' loops: over head_dim, over keys and over columns of O. The loops over keys
// and columns index register arrays; where they stay rolled, these arrays lie in local memory.
template <int kDepthSteps, int kKeySteps, int kColumnSteps>
struct Unroll {
  static constexpr int kDepth = kDepthSteps, kKeys = kKeySteps, kColumns = kColumnSteps;
};
using FullUnroll = Unroll<64, 64, 64>;  // more than any loop has

// s = Q K^T: s[j] holds keys 8j .. 8j+7, laid out as mma.cuh says.
template <int kKeys, class Loops = FullUnroll, class Element>
__device__ void multiply_keys(float (&s)[kKeys / 8][4], const Element* queries, const Element* keys) {
  const int lane = threadIdx.x % 32;
  const Element* const q = queries + lane % 16 * kPitch + lane / 16 * 8;
  const Element* const k = keys + (lane % 8 + lane / 16 * 8) * kPitch + lane / 8 % 2 * 8;
#pragma unroll
  for (auto& block : s) block[0] = block[1] = block[2] = block[3] = 0;
#pragma unroll Loops::kDepth
  for (int d = 0; d < kDim; d += 16) {
    uint32_t a[4], b[4];
    arch::ldmatrix_x4(a, q + d);
#pragma unroll Loops::kKeys
    for (int j = 0; j < kKeys / 8; j += 2) {
      arch::ldmatrix_x4(b, k + j * 8 * kPitch + d);
      arch::mma_m16n8k16<Element>(s[j], a, b[0], b[1]);
      arch::mma_m16n8k16<Element>(s[j + 1], a, b[2], b[3]);
    }
  }
}

// The left operand of keys 8j .. 8j+15.
template <class Element, int kBlocks>
__device__ void pack_probabilities(uint32_t (&a)[4], const float (&s)[kBlocks][4], int j) {
  a[0] = arch::pack_pair<Element>(s[j][0], s[j][1]);
  a[1] = arch::pack_pair<Element>(s[j][2], s[j][3]);
  a[2] = arch::pack_pair<Element>(s[j + 1][0], s[j + 1][1]);
  a[3] = arch::pack_pair<Element>(s[j + 1][2], s[j + 1][3]);
}

// o += P V, with P in s.
template <int kKeys, class Loops = FullUnroll, class Element>
__device__ void multiply_values(float (&o)[kDim / 8][4], const float (&s)[kKeys / 8][4],
                                const Element* values) {
  const int lane = threadIdx.x % 32;
  const Element* const v = values + lane % 16 * kPitch + lane / 16 * 8;
#pragma unroll Loops::kKeys
  for (int j = 0; j < kKeys / 8; j += 2) {
    uint32_t a[4];
    pack_probabilities<Element>(a, s, j);
#pragma unroll Loops::kColumns
    for (int d = 0; d < kDim / 8; d += 2) {
      uint32_t b[4];
      arch::ldmatrix_x4_trans(b, v + j * 8 * kPitch + d * 8);
      arch::mma_m16n8k16<Element>(o[d], a, b[0], b[1]);
      arch::mma_m16n8k16<Element>(o[d + 1], a, b[2], b[3]);
    }
  }
}

// Sets hidden scores to -inf. Under a negative scale it also flips the sign of the others, so that the scale
// is positive from here on. `row` is the thread's first row in the tile.
template <int kKeys, class AProblem>
__device__ void mask_scores(float (&s)[kKeys / 8][4], const AProblem& p, const TileAddress& at, int row,
                            const int32_t* keys, int begin, int visible) {
  if (!p.masks(begin, kKeys, visible)) return;
  const float sign = p.negative_scale ? -1.0f : 1.0f;
  const int last[2] = {p.last_key(at, p.token_of(at, row)), p.last_key(at, p.token_of(at, row + 8))};
#pragma unroll
  for (int j = 0; j < kKeys / 8; ++j) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int key = keys[8 * j + threadIdx.x % 4 * 2 + e % 2];
      s[j][e] = key <= last[e / 2] ? sign * s[j][e] : -INFINITY;
    }
  }
}

template <int kKeys>
__device__ float largest_of_row(const float (&s)[kKeys / 8][4], int half) {
  float largest = -INFINITY;
#pragma unroll
  for (const auto& block : s) largest = fmaxf(largest, fmaxf(block[2 * half], block[2 * half + 1]));
  return quad_max(largest);
}

// Turns the scores of one of the thread's two rows into 2^(scale * score - shift). Returns their sum over the
// thread's columns.
template <int kKeys>
__device__ float exponentiate_row(float (&s)[kKeys / 8][4], int half, float scale, float shift) {
  float sum = 0;
#pragma unroll
  for (auto& block : s) {
#pragma unroll
    for (int e = 2 * half; e < 2 * half + 2; ++e) {
      block[e] = arch::exp2_approx(fmaf(block[e], scale, -shift));
      sum += block[e];
    }
  }
  return sum;
}

__device__ inline void scale_row(float (&o)[kDim / 8][4], int half, float factor) {
#pragma unroll
  for (auto& block : o) {
    block[2 * half] *= factor;
    block[2 * half + 1] *= factor;
  }
}

// One step of the online softmax (Milakov and Gimelshein 2018), all in registers.
template <int kKeys>
__device__ void online_softmax(float (&s)[kKeys / 8][4], float (&o)[kDim / 8][4], RowState (&state)[2],
                               float scale) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float shift;
    const float factor = state[half].raise(largest_of_row<kKeys>(s, half), scale, shift);
    state[half].sum = state[half].sum * factor + exponentiate_row<kKeys>(s, half, scale, shift);
    scale_row(o, half, factor);
  }
}

// Normalises and stores the thread's two rows. `sum`: their sums over all columns.
template <class Element, class AProblem>
__device__ void store_rows(const AProblem& p, const TileAddress& at, int row, const float (&o)[kDim / 8][4],
                           const float (&sum)[2]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int64_t query = p.query_row(at, row + 8 * half);
    if (query < 0) continue;
    const float inverse = inverse_or_zero(sum[half]);
    Element* const out = static_cast<Element*>(p.out) + query * p.head_dim;
#pragma unroll
    for (int d = 0; d < kDim / 8; ++d) {
      const int column = 8 * d + threadIdx.x % 4 * 2;
      if (column >= p.head_dim) break;
      *reinterpret_cast<uint32_t*>(out + column) =
          arch::pack_pair<Element>(o[d][2 * half] * inverse, o[d][2 * half + 1] * inverse);
    }
  }
}

}  // namespace splash::gpu::kascade
