#pragma once
// The loop of rungs 0 to 3: gather a tile of keys and values, barrier, compute, barrier. What differs is the
// softmax:
//
//   struct Softmax {
//     static constexpr int kRows, kKeys;                     // of a thread block; of a tile
//     struct Shared {…};                                     // its scratch
//     __device__ Softmax(Shared& shared, int row);           // `row`: the thread's first
//                                                            // of two; the second is row + 8
//     __device__ void step(float (&s)[kKeys / 8][4], float (&o)[kDim / 8][4], float scale, Clock& clock);
//                                                            // scores -> P; ends phases before its last
//     __device__ float sum(int half);                        // of the thread's first or second row
//     __device__ void multiply(float (&o)[kDim / 8][4], const float (&s)[kKeys / 8][4], const Element* v);
//   };                                                       // if it has one: its own O += P V

#include "gpu/ladders/kascade/phase_clock.cuh"
#include "gpu/ladders/kascade/warp_tile.cuh"

namespace splash::gpu::kascade {

// For the rungs that keep each row's value in shared memory, one copy per lane, as the TPU kernel does.
constexpr int kLanes = 32,
              kLanePitch = kLanes + 4;  // padded: the eight rows of a quad's store in different banks

// Each of the four lanes that share a row fills a quarter of it.
template <int kRows>
__device__ void broadcast(float (&array)[kRows][kLanePitch], int row, float value) {
  for (int i = 0; i < kLanes / 4; i += 4) {
    *reinterpret_cast<float4*>(&array[row][threadIdx.x % 4 * (kLanes / 4) + i]) =
        float4{value, value, value, value};
  }
}

template <class Element, class Softmax>
struct SequentialShared {
  alignas(16) Element queries[Softmax::kRows * kPitch];
  KeyTile<Element, Softmax::kKeys> tile;
  typename Softmax::Shared softmax;
};

template <class Element, class Softmax, class Clock>
__device__ __forceinline__ void run_sequentially(const Problem& p, Clock& clock) {
  constexpr int kKeys = Softmax::kKeys;
  extern __shared__ __align__(16) unsigned char shared_memory[];
  auto& shared = *reinterpret_cast<SequentialShared<Element, Softmax>*>(shared_memory);
  const TileAddress at = p.address(blockIdx.x);
  const int visible = p.visible_keys(at), first = threadIdx.x / 32 * 16, row = first + threadIdx.x % 32 / 4;
  load_queries(shared.queries, p, at, Softmax::kRows);
  float s[kKeys / 8][4], o[kDim / 8][4] = {};
  Softmax softmax(shared.softmax, row);
  clock.start();
  for (int begin = 0; begin < visible; begin += kKeys) {
    __syncthreads();  // all warps have read the previous tile
    clock.end(Phase::barriers);
    shared.tile.load(p, at, begin, visible);
    clock.end(Phase::loads);
    __syncthreads();
    clock.end(Phase::barriers);
    multiply_keys<kKeys>(s, shared.queries + first * kPitch, shared.tile.k);
    clock.hold(s);
    clock.end(Phase::scores);
    mask_scores<kKeys>(s, p, at, row, shared.tile.keys, begin, visible);
    softmax.step(s, o, p.scale, clock);
    clock.hold(s);
    clock.hold(o);
    clock.end(Phase::softmax);
    if constexpr (requires { softmax.multiply(o, s, shared.tile.v); }) {
      softmax.multiply(o, s, shared.tile.v);
    } else {
      multiply_values<kKeys>(o, s, shared.tile.v);
    }
    clock.hold(o);
    clock.end(Phase::values);
  }
  const float sums[2] = {softmax.sum(0), softmax.sum(1)};
  store_rows<Element>(p, at, row, o, sums);
}

// Tiles of up to 64 keys leave registers for two blocks per SM.
template <class Element, class Softmax>
__global__ void __launch_bounds__(2 * Softmax::kRows, Softmax::kKeys <= 64 ? 256 / Softmax::kRows : 1)
    attend_sequentially(const Problem p) {
  NoClock clock;
  run_sequentially<Element, Softmax>(p, clock);
}

// The same kernel, timed. It adds to `cycles`: kPhases sums over all warps.
template <class Element, class Softmax>
__global__ void __launch_bounds__(2 * Softmax::kRows, Softmax::kKeys <= 64 ? 256 / Softmax::kRows : 1)
    profile_phases(const Problem p, unsigned long long* cycles) {
  PhaseClock clock;
  run_sequentially<Element, Softmax>(p, clock);
  clock.add_to(cycles);
}

// One thread block per item.
inline Plan plan_items(const AttentionSpec& spec, const Tile& tile, const char* name, const void* kernel,
                       int64_t shared_bytes) {
  const Problem p = Problem::of(spec, tile.q);
  Plan plan{.tile = tile};
  plan.kernels = {{name, kernel, p.items, 2 * tile.q, shared_bytes}};
  plan.unit = MathUnit::f16;
  return plan;
}
inline std::vector<KernelTrace> trace_sequential(const AttentionSpec& spec, Dtype dtype, const Plan& plan) {
  return trace_items(spec, dtype, plan.kernels[0], plan.tile.q,
                     {.tile_keys = plan.tile.k, .padded_dim = kDim, .through_l1 = true});
}

template <class Softmax>
Plan plan_sequential(const AttentionSpec& spec, Dtype dtype, const DeviceInfo&) {
  return with_element(dtype, [&](auto element) {
    using Element = decltype(element);
    return plan_items(spec, {.q = Softmax::kRows, .k = Softmax::kKeys}, "attend_sequentially",
                      reinterpret_cast<const void*>(&attend_sequentially<Element, Softmax>),
                      sizeof(SequentialShared<Element, Softmax>));
  });
}

template <class Softmax>
void launch_sequential(const AttentionSpec& spec, Dtype dtype, const Plan& plan, const Arguments& arguments) {
  const KernelLaunch& kernel = plan.kernels.front();
  with_element(dtype, [&](auto element) {
    attend_sequentially<decltype(element), Softmax>
        <<<static_cast<unsigned>(kernel.blocks), kernel.threads, kernel.shared_bytes, arguments.stream>>>(
            Problem::of(spec, Softmax::kRows, arguments));
  });
  check_launch(kernel.name.c_str());
}

template <class Softmax>
PhaseProfile profile_sequential() {
  return {.phases = {kPhaseNames, kPhaseNames + kPhases},
          .launch = [](const AttentionSpec& spec, Dtype dtype, const Plan& plan, const Arguments& arguments) {
            const KernelLaunch& kernel = plan.kernels.front();
            with_element(dtype, [&](auto element) {
              const auto profiled = &profile_phases<decltype(element), Softmax>;
              check_cuda(cudaFuncSetAttribute(profiled, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                              static_cast<int>(kernel.shared_bytes)),
                         "give shared memory to profile_phases");
              profiled<<<static_cast<unsigned>(kernel.blocks), kernel.threads, kernel.shared_bytes,
                         arguments.stream>>>(Problem::of(spec, Softmax::kRows, arguments),
                                             static_cast<unsigned long long*>(arguments.workspace));
            });
            check_launch("profile_phases");
          }};
}

}  // namespace splash::gpu::kascade
