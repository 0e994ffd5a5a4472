#pragma once
// What the parts of the column pass share: a lane's sums of a key, and how the groups of a block walk
// through entries.

#include "gpu/entmax/backward/entry.cuh"
#include "gpu/entmax/backward/group.cuh"

namespace splash::gpu::entmax::backward {

constexpr int kColumnThreads = 128, kColumnBlocks = 5;  // per SM

// A lane's part of a key's dV and dK.
struct ColumnSum {
  float v[8] = {}, k[8] = {};

  template <class T>
  __device__ void add(float p, const Packed<T>& d_out, float ds, const Packed<T>& q) {
    float x[8];
    unpack(d_out, x);
#pragma unroll
    for (int d = 0; d < 8; ++d) v[d] = fmaf(p, x[d], v[d]);
    unpack(q, x);
#pragma unroll
    for (int d = 0; d < 8; ++d) k[d] = fmaf(ds, x[d], k[d]);
  }

  // Sets the sums to 0 by an AND with threadIdx.y, which is 0 as blocks have one dimension. (After a plain
  // assignment the compiler would keep the zeros in other registers and copy every sum after every entry.)
  __device__ void clear() {
    const uint32_t none = threadIdx.y;
#pragma unroll
    for (int d = 0; d < 8; ++d) {
      v[d] = __uint_as_float(__float_as_uint(v[d]) & none);
      k[d] = __uint_as_float(__float_as_uint(k[d]) & none);
    }
  }

  // to, from: shared or global memory. A lane has four float4 there; the lanes' i-th ones lie side by side.
  template <int kLanes>
  __device__ void put(float4* to, int lane) const {
    to[lane] = {v[0], v[1], v[2], v[3]};
    to[kLanes + lane] = {v[4], v[5], v[6], v[7]};
    to[2 * kLanes + lane] = {k[0], k[1], k[2], k[3]};
    to[3 * kLanes + lane] = {k[4], k[5], k[6], k[7]};
  }
  template <int kLanes>
  __device__ void add(const float4* from, int lane) {
    float* const sums[4] = {v, v + 4, k, k + 4};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float4 x = from[i * kLanes + lane];
      sums[i][0] += x.x;
      sums[i][1] += x.y;
      sums[i][2] += x.z;
      sums[i][3] += x.w;
    }
  }
};

// An entry as the groups of a block read it; all lanes of a group read the same one at once.
struct alignas(16) Placed {
  Entry entry;   // its row over all heads
  uint32_t key;  // in the tile
};
constexpr uint32_t kNoKey = 0xFFFFFFFF;  // of the padding behind the last entry, which is loaded but not used

// The groups of a block, and how they walk through entries.
template <class T, int kLanes>
struct Columns {
  static constexpr int kGroups = kColumnThreads / kLanes;
  static constexpr int kFlight = std::is_same_v<T, float> ? 2 : 4;  // entries whose rows are in flight

  const BackwardProblem& p;
  Group<T, kLanes> lanes{p};
  uint32_t group = threadIdx.x / kLanes;
  const char *gradients = lanes.part_of(p.d_out), *queries = lanes.part_of(p.q);

  __device__ explicit Columns(const BackwardProblem& problem) : p(problem) {}

  __device__ void write(uint32_t key, const ColumnSum& sum) const {
    lanes.store(p.d_v, key, sum.v);
    lanes.store(p.d_k, key, sum.k);
  }

  // The group's share of a block's entries: whole flights (kFlight entries), as many as every other group's
  // until the entries end.
  struct Run {
    uint32_t most, begin, end;  // most: entries of the largest share
  };
  __device__ Run run_of(uint32_t count) const {
    const uint32_t most = (count + kGroups * kFlight - 1) / (kGroups * kFlight) * kFlight,
                   begin = min(group * most, count);
    return {most, begin, min(begin + most, count)};
  }
  // Pads a block's `count` entries by one flight, so that the last flight is whole.
  __device__ static void end_entries(Placed* entries, uint32_t count) {
    if (threadIdx.x < kFlight) entries[count + threadIdx.x] = {{0, 0, 0}, kNoKey};
  }

  // Calls add(entry, dO, q) for the entries of the run, one after the other, and for the padding that
  // completes the last flight. kSkips: whether to leave out q where ds is 0, as of many of a sink's entries.
  template <bool kSkips = false, class Add>
  __device__ void for_entries(const Placed* entries, const Run& run, const Add& add) const {
#pragma unroll 1
    for (uint32_t base = run.begin; base < run.end; base += kFlight) {
      Packed<T> d_out[kFlight], q[kFlight];
#pragma unroll
      for (int i = 0; i < kFlight; ++i) {
        const uint32_t row = entries[base + i].entry.row;
        d_out[i] = lanes.load(gradients, row);
        if constexpr (kSkips) q[i] = {};
        if (!kSkips || entries[base + i].entry.ds != 0) q[i] = lanes.load(queries, row);
      }
#pragma unroll
      for (int i = 0; i < kFlight; ++i) add(entries[base + i], d_out[i], q[i]);
    }
  }
};

}  // namespace splash::gpu::entmax::backward
