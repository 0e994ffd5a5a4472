// Beyond source 002: Hopper's own instructions, in the manner of FlashAttention-3 (Shah et al. 2024). One
// thread of a producer warpgroup issues TMA loads into rings of K and V tiles. The other warpgroups multiply
// 64 query rows each with wgmma and take the probabilities straight from registers.
//
// Predicted cycles per multiprocessor for 64 queries x 128 keys: wgmma m64n128k16 takes 64, so both products
// take 512 at head_dim 64 and 1024 at 128. 8192 exponentials at 16 per cycle take 512. The softmax issues
// about 4.5 instructions per score, 8192 x 4.5 / 128 lanes = 290, plus 70 around it. So at head_dim 64
// products and exponentials tie at 512 and must overlap completely; at 128 the products dominate. Hence two
// overlaps:
// - Within a warpgroup: the scores of the next tile are issued before this tile's P V, and their softmax runs
//   while the tensor cores work on P V. Registers for scores, probabilities and output: 64 + 32 + 32 at
//   head_dim 64 (three warpgroups, 160 each), 64 + 32 + 64 at 128 (two, 240 each).
// - Between warpgroups: they issue their products in turns, so that their softmaxes do not coincide.
//
// The loop walks the keys from the last to the first, so that only the first few tiles need masks. The causal
// blocks with the most tiles come first. At 75 % overlap: 500 TFLOP/s at head_dim 64, 650 at 128.

#include "gpu/arch/ldmatrix.cuh"
#include "gpu/ladders/wmma/hopper.cuh"

namespace splash::gpu {
namespace {

using namespace wmma_ladder;

constexpr int kFirstTurnBarrier = 1, kFirstStoreBarrier = 4;

template <int kDim>
struct Config {
  static constexpr int kConsumers = kDim == 64 ? 3 : 2;
  static constexpr int kTileM = kConsumers * kRows, kTileN = kDim == 256 ? 64 : 128;
  static constexpr int kStages = kDim == 64 ? 4 : 2;
  static constexpr int kThreads = (1 + kConsumers) * kWarpgroup;
  static constexpr int kProducerRegisters = kConsumers == 3 ? 32 : 24;
  static constexpr int kConsumerRegisters = kConsumers == 3 ? 160 : 240;
};

template <class T, int kDim>
struct Shared {
  using C = Config<kDim>;
  alignas(1024) T q[C::kConsumers][kRows * kDim];  // holds the output at the end
  alignas(1024) T k[C::kStages][C::kTileN * kDim];
  alignas(1024) T v[C::kStages][C::kTileN * kDim];
  uint64_t q_full, k_full[C::kStages], k_empty[C::kStages], v_full[C::kStages], v_empty[C::kStages];
};

template <class T, int kDim>
__device__ void produce(Shared<T, kDim>& shared, const Maps& maps, const BlockTask& task, int tiles) {
  using C = Config<kDim>;
  constexpr int kTileBytes = C::kTileN * kDim * 2;
  arch::mbarrier_arrive_expect(&shared.q_full, C::kTileM * kDim * 2);
  for (int i = 0; i < C::kConsumers; ++i)
    load_tile<kDim, kRows>(shared.q[i], &maps.q, &shared.q_full, task.first_query + i * kRows, task.head);
  arch::RingPosition<C::kStages> ring;
  for (int tile = tiles - 1; tile >= 0; --tile, ring.next()) {
    const auto load = [&](const CUtensorMap* map, T* to, uint64_t* full, uint64_t* empty) {
      arch::mbarrier_wait(empty, ring.parity ^ 1);
      arch::mbarrier_arrive_expect(full, kTileBytes);
      load_tile<kDim, C::kTileN>(to, map, full, tile * C::kTileN, task.kv_head);
    };
    load(&maps.k, shared.k[ring.stage], &shared.k_full[ring.stage], &shared.k_empty[ring.stage]);
    load(&maps.v, shared.v[ring.stage], &shared.v_full[ring.stage], &shared.v_empty[ring.stage]);
  }
}

// One warpgroup's 64 rows. Its state is spread over these members so that each step of the loop has a name.
template <class T, int kDim>
class Consumer {
  using C = Config<kDim>;
  static constexpr int kScores = C::kTileN / 2, kOutputs = kDim / 2;

 public:
  __device__ __forceinline__ Consumer(Shared<T, kDim>& shared, const Problem& p, const BlockTask& task)
      : shared_(shared),
        group_(static_cast<int>(threadIdx.x) / kWarpgroup - 1),
        lane_(static_cast<int>(threadIdx.x) % kWarp),
        warp_(static_cast<int>(threadIdx.x) / kWarp % 4),
        first_query_(task.first_query + group_ * kRows),
        scale_(fabsf(p.scale_log2)),
        unmasked_end_(p.scale_log2 < 0 ? 0 : end_of_keys(p, first_query_)),
        mask_(p, first_query_ + 16 * warp_ + lane_ / 4) {}

  __device__ __forceinline__ void run(int tiles) {
#pragma unroll
    for (float& x : out_) x = 0;
    arch::mbarrier_wait(&shared_.q_full, 0);  // needed even without keys, because the output overwrites Q
    if (tiles > 0) {
      arch::mbarrier_wait(&shared_.k_full[k_.stage], k_.parity);
      multiply_scores();
      arch::wgmma_wait<0>();
      softmax(tiles - 1);
      pack<T>(probabilities_, scores_);
      arch::mbarrier_wait(&shared_.v_full[v_.stage], v_.parity);
      for (int tile = tiles - 2; tile >= 0; --tile) step(tile, tiles - 2 - tile, tile == 0);
      multiply_values();
      arch::wgmma_wait<0>();
      arch::wgmma_hold(out_);
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) correction_[r] = rows_.inverse(r);
    scale_rows(out_, correction_);
  }

  // Stores the output through shared memory, over this warpgroup's queries, so that whole rows are stored.
  __device__ __forceinline__ void store(const Maps& maps, const Problem& p, const BlockTask& task) {
    if (first_query_ >= p.q_len) return;
    unsigned char* const tile = reinterpret_cast<unsigned char*>(shared_.q[group_]);
    const int row = 16 * warp_ + lane_ % 16;
    arch::named_barrier_sync(kFirstStoreBarrier + group_, kWarpgroup);  // no warp still multiplies Q
#pragma unroll
    for (int i = 0; i < kOutputs / 8; ++i) {  // a block of 16 rows x 16 columns
      const uint32_t block[4] = {arch::pack_pair<T>(out_[8 * i], out_[8 * i + 1]),
                                 arch::pack_pair<T>(out_[8 * i + 2], out_[8 * i + 3]),
                                 arch::pack_pair<T>(out_[8 * i + 4], out_[8 * i + 5]),
                                 arch::pack_pair<T>(out_[8 * i + 6], out_[8 * i + 7])};
      const int byte = 32 * (i % 4) + lane_ / 16 * 16;
      arch::stmatrix_x4(
          tile + i / 4 * kRows * kPanelRowBytes + arch::swizzled_offset(arch::Swizzle::bytes128, row, byte),
          block);
    }
    arch::fence_async_proxy();
    arch::named_barrier_sync(kFirstStoreBarrier + group_, kWarpgroup);
    if (threadIdx.x % kWarpgroup != 0) return;
    for (int column = 0; column < kDim; column += kPanel)
      arch::tensor_store(&maps.out, shared_.q[group_] + column * kRows, column, first_query_, task.head);
    arch::bulk_commit();
    arch::bulk_wait_read<0>();  // shared memory must outlive the copy
  }

 private:
  // Issues the scores of `tile` and, with them, P V of the previous tile (which has larger keys).
  __device__ __forceinline__ void step(int tile, int turn, bool last) {
    arch::mbarrier_wait(&shared_.k_full[k_.stage], k_.parity);
    if (turn > 0 || group_ > 0) arch::named_barrier_sync(kFirstTurnBarrier + group_, 2 * kWarpgroup);
    multiply_scores();
    multiply_values();
    if (!last || group_ < C::kConsumers - 1)
      arch::named_barrier_arrive(kFirstTurnBarrier + (group_ + 1) % C::kConsumers, 2 * kWarpgroup);
    arch::wgmma_wait<1>();
    softmax(tile);
    uint64_t* const v_empty = &shared_.v_empty[v_.stage];
    v_.next();
    // The wait for the next product's V stands here because its branch keeps ptxas from moving the softmax
    // past the next wait.
    arch::mbarrier_wait(&shared_.v_full[v_.stage], v_.parity);
    arch::wgmma_wait<0>();
    arch::wgmma_hold(out_);
    release(v_empty);
    if (maxima_moved_) scale_rows(out_, correction_);
    pack<T>(probabilities_, scores_);
  }

  __device__ __forceinline__ void multiply_scores() {
    wmma_ladder::multiply_scores<T, kDim, C::kTileN>(scores_, shared_.q[group_], shared_.k[k_.stage]);
  }
  __device__ __forceinline__ void multiply_values() {
    wmma_ladder::multiply_values<T, kDim, C::kTileN>(out_, probabilities_, shared_.v[v_.stage]);
  }

  // Called after the wait for the scores, when K has been read.
  __device__ __forceinline__ void softmax(int tile) {
    arch::wgmma_hold(scores_);
    release(&shared_.k_empty[k_.stage]);
    k_.next();
    const int first_key = tile * C::kTileN;
    if (first_key + C::kTileN > unmasked_end_) mask_.apply(scores_, first_key + 2 * (lane_ % 4));
    rows_.exponentiate(scores_, scale_, correction_);
    arch::wgmma_hold(scores_);
    // The vote includes the sums (harmless for a NaN row), so that ptxas computes them here and not after the
    // wait for P V.
    maxima_moved_ = __any_sync(
        ~0U, correction_[0] != 1 || correction_[1] != 1 || isnan(rows_.sum[0]) || isnan(rows_.sum[1]));
  }

  // Every warp arrives, because each warp waits only for its own part of a product.
  __device__ __forceinline__ void release(uint64_t* empty) const {
    if (lane_ == 0) arch::mbarrier_arrive(empty);
  }

  Shared<T, kDim>& shared_;
  int group_, lane_, warp_, first_query_;
  float scale_;
  int unmasked_end_;  // keys before it are seen by all rows
  RowPairMask mask_;
  arch::RingPosition<C::kStages> k_, v_;
  RowPair rows_;
  float correction_[2];
  bool maxima_moved_;
  float scores_[kScores], out_[kOutputs];
  uint32_t probabilities_[C::kTileN / 16][4];
};

template <class T, int kDim>
__global__ void __launch_bounds__(Config<kDim>::kThreads, 1)
    attention(Problem p, const __grid_constant__ Maps maps) {
  using C = Config<kDim>;
  extern __shared__ __align__(1024) unsigned char memory[];
  auto& shared = *reinterpret_cast<Shared<T, kDim>*>(memory);
  const BlockTask task = block_task(p, C::kTileM, p.causal);
  const int tiles = (task.end_key + C::kTileN - 1) / C::kTileN;
  if (threadIdx.x == 0) {
    arch::mbarrier_init(&shared.q_full, 1);
    for (int i = 0; i < C::kStages; ++i) {
      arch::mbarrier_init(&shared.k_full[i], 1);
      arch::mbarrier_init(&shared.v_full[i], 1);
      arch::mbarrier_init(&shared.k_empty[i], 4 * C::kConsumers);
      arch::mbarrier_init(&shared.v_empty[i], 4 * C::kConsumers);
    }
    arch::mbarrier_init_fence();
  }
  __syncthreads();
  if (threadIdx.x < kWarpgroup) {
    arch::give_registers_back<C::kProducerRegisters>();
    if (threadIdx.x == 0) produce(shared, maps, task, tiles);
  } else {
    arch::take_registers<C::kConsumerRegisters>();
    Consumer<T, kDim> consumer(shared, p, task);
    consumer.run(tiles);
    consumer.store(maps, p, task);
  }
}

template <int kDim>
Plan plan_for(const AttentionSpec& spec, const Entry& entry) {
  using C = Config<kDim>;
  return tiled_plan(spec, {.q = C::kTileM, .k = C::kTileN, .stages = C::kStages, .instruction_q = 64},
                    "warp-specialised", C::kThreads, entry);
}

Plan plan(const AttentionSpec& spec, Dtype dtype, const DeviceInfo&) {
  return for_instance(dtype, spec.shape.head_dim, [&](auto instance) {
    using I = decltype(instance);
    using T = typename I::Element;
    constexpr int kDim = I::kHeadDim;
    return plan_for<kDim>(spec, {reinterpret_cast<const void*>(attention<T, kDim>), sizeof(Shared<T, kDim>)});
  });
}

std::vector<KernelTrace> trace(const AttentionSpec& spec, Dtype dtype, const Plan& plan) {
  return trace_walk(spec, dtype, plan, {.longest_first = true, .backwards = true, .threads_of_row = 4});
}

const Variant kVariant{
    .ladder = "wmma",
    .rung = 10,
    .name = "warp-specialised",
    .idea =
        "bulk tensor copies and wgmma: a producer warpgroup, consumers whose products overlap their "
        "softmaxes",
    .finding =
        "1.6x at B 2. At 16k 0.98 to 1.14x cuDNN at d 64 and 128: the power limit lowers the clock of both, "
        "and ratios move by up to 10 % between runs.",
    .limits = limits_of({.compute_capability = 90}),
    .plan = plan,
    .launch = launch_with_maps,
    .trace = trace};
const VariantRegistration kRegistration(kVariant);

}  // namespace
}  // namespace splash::gpu
