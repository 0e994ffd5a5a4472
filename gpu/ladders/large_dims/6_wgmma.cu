// Rung 6: for sizes that fill the chip, attention with a large head_dim is two matrix products with a softmax
// between: S = Q K^T (its sum runs over head_dim), P = softmax(S), O = P V (its columns are head_dim). Three
// launches; S and P stay in L2. The products are persistent wgmma kernels: a producer thread feeds 48 KB
// stages through the copy engine, two warpgroups multiply 128 x 256 tiles. bf16 directly; fp32 as tf32,
// rounded to nearest by the copy engine (nmse near 1e-7, where exact fp32 has 1e-13). tf32 operands must be
// K-major, and V is not: for fp32 the second product is O^T = V^T P^T, with V^T read from shared memory into
// registers; P's keys are stored even before odd in each eight, so that those reads meet no bank conflicts.
//
// Arithmetic, B 8, H 4, 512 x 512, head_dim 2048: 68.7 GFLOP; bf16 at 760 TFLOP/s 90 us, tf32 at 400 172 us;
// Q, K, V, O once are 268 (537) MB, 63 (126) us, under that. A stage is 1024 cycles of products and 48 KB: 47
// bytes a cycle out of L2, near its limit, so expect ~80 % of the roof in the products. Scores: 256 tiles on
// 132 multiprocessors, 1.94 of 2 waves; values: 1024 tiles, 7.8 of 8, an epilogue of ~1000 cycles behind
// every 8192. Softmax: 50 MB within L2, ~12 us. Expect 135 us (66 %) and 250 us (68 %); rung 3 needs 3200.

#include "gpu/arch/wgmma_tf32.cuh"
#include "gpu/ladders/large_dims/gemm_ring.cuh"
#include "gpu/ladders/large_dims/normalize_rows.cuh"

namespace splash::gpu {
namespace {

using namespace large_dims;
using namespace arch;

template <class T>
constexpr int kStep = kPanel / int{sizeof(T)};  // elements of the sum a stage

// What the host decides.
struct Layout {
  int pitch = 0;       // of the rows of S and P, in elements
  int score_keys = 0;  // keys a tile of the scores: 128 or 256
};

// S [heads, q_len, pitch] = Q K^T, not scaled. Tiles of 128 queries by kKeys keys; those that no query sees
// stay unwritten.
template <class T, int kKeys>
__global__ void __launch_bounds__(kGemmThreads, 1)
    multiply_scores(const Problem problem, const Layout layout, const __grid_constant__ CUtensorMap q_map,
                    const __grid_constant__ CUtensorMap k_map, float* scores) {
  extern __shared__ __align__(1024) unsigned char shared[];
  Ring& ring = *reinterpret_cast<Ring*>(shared);
  init_ring(ring);
  follow_previous_kernel();
  const int q_tiles = (problem.q_len + 127) / 128, k_tiles = (problem.kv_len + kKeys - 1) / kKeys;
  const int tiles = problem.heads * q_tiles * k_tiles, steps = (problem.head_dim + kStep<T> - 1) / kStep<T>;
  const auto for_each_tile = [&](auto&& use) {
    for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
      const int first_key = tile % k_tiles * kKeys, first_query = tile / k_tiles % q_tiles * 128;
      if (first_key < problem.key_tiles(first_query + 127, kKeys) * kKeys)
        use(tile / k_tiles / q_tiles, first_query, first_key);
    }
  };
  const int consumer = static_cast<int>(threadIdx.x / 128) - 1;
  RingPosition at;
  if (consumer < 0) {
    give_registers_back<40>();
    if (threadIdx.x != 0) return;
    for_each_tile([&](int head, int first_query, int first_key) {
      produce(ring, at, steps, (128 + kKeys) * kPanel, [&](Stage& stage, uint64_t* full, int step) {
        tensor_load(stage.small, &q_map, full, step * kStep<T>, first_query, head);
        tensor_load(stage.large, &k_map, full, step * kStep<T>, first_key, head / problem.group);
      });
    });
  } else {
    take_registers<232>();
    for_each_tile([&](int head, int first_query, int first_key) {
      float sums[kKeys / 2];
      consume(ring, at, steps, sums, [&](Stage& stage, int step) {
        const uint64_t a = k_major_descriptor(stage.small + consumer * 64 * kPanel);
        const uint64_t b = k_major_descriptor(stage.large);
#pragma unroll
        for (int k = 0; k < 4; ++k) wgmma<T>(sums, advance(a, 32 * k), advance(b, 32 * k), step > 0 || k > 0);
      });
      const int lane = threadIdx.x % 32,
                row = first_query + 64 * consumer + threadIdx.x % 128 / 32 * 16 + lane / 4;
      const int column = first_key + lane % 4 * 2;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if (row + 8 * half >= problem.q_len) continue;
        float* out = scores + (int64_t{head} * problem.q_len + row + 8 * half) * layout.pitch + column;
#pragma unroll
        for (int j = 0; j < kKeys / 8; ++j) {
          if (column + 8 * j < layout.pitch)
            *reinterpret_cast<float2*>(out + 8 * j) =
                make_float2(sums[4 * j + 2 * half], sums[4 * j + 2 * half + 1]);
        }
      }
    });
  }
}

template <int kQueries, int kColumns, class Use>
__device__ void for_each_value_tile(const Problem& problem, Use&& use) {
  const int q_tiles = (problem.q_len + kQueries - 1) / kQueries;
  const int columns = (problem.head_dim + kColumns - 1) / kColumns;
  for (int tile = blockIdx.x; tile < problem.heads * q_tiles * columns; tile += gridDim.x) {
    const int first_query = tile / columns % q_tiles * kQueries;
    use(tile / columns / q_tiles, first_query, tile % columns * kColumns, first_query + kQueries - 1);
  }
}

// O = P V in bf16: tiles of 128 queries by 256 columns. V's stage is four panels of 64 keys by 64 columns.
__global__ void __launch_bounds__(kGemmThreads, 1)
    multiply_values_bf16(const Problem problem, const __grid_constant__ CUtensorMap p_map,
                         const __grid_constant__ CUtensorMap v_map,
                         const __grid_constant__ CUtensorMap out_map) {
  using T = __nv_bfloat16;
  constexpr int kKeys = kStep<T>, kPanelBytes = kKeys * kPanel;
  extern __shared__ __align__(1024) unsigned char shared[];
  Ring& ring = *reinterpret_cast<Ring*>(shared);
  unsigned char* results = shared + round_up(sizeof(Ring), 1024);  // [consumer][half][64 rows * kPanel]
  init_ring(ring);
  follow_previous_kernel();
  const int consumer = static_cast<int>(threadIdx.x / 128) - 1;
  RingPosition at;
  if (consumer < 0) {
    give_registers_back<40>();
    if (threadIdx.x != 0) return;
    for_each_value_tile<128, 256>(problem, [&](int head, int first_query, int first_column, int last_query) {
      produce(ring, at, problem.key_tiles(last_query, kKeys), sizeof(Stage),
              [&](Stage& stage, uint64_t* full, int step) {
                tensor_load(stage.small, &p_map, full, step * kKeys, first_query, head);
                for (int panel = 0; panel < 4; ++panel) {
                  tensor_load(stage.large + panel * kPanelBytes, &v_map, full, first_column + 64 * panel,
                              step * kKeys, head / problem.group);
                }
              });
    });
  } else {
    take_registers<232>();
    const int lane = threadIdx.x % 32, thread = threadIdx.x % 128;
    unsigned char* own = results + consumer * 2 * 64 * kPanel;
    for_each_value_tile<128, 256>(problem, [&](int head, int first_query, int first_column, int last_query) {
      float sums[128];
      consume(ring, at, problem.key_tiles(last_query, kKeys), sums, [&](Stage& stage, int step) {
        const uint64_t a = k_major_descriptor(stage.small + consumer * 64 * kPanel);
        const uint64_t b = mn_major_descriptor(stage.large, kPanelBytes);
#pragma unroll
        for (int k = 0; k < 4; ++k)
          wgmma<T, Major::mn>(sums, advance(a, 32 * k), advance(b, 16 * kPanel * k), step > 0 || k > 0);
      });
#pragma unroll
      for (int panel = 0; panel < 4; ++panel) {  // 64 rows by 64 columns, through two buffers
        unsigned char* buffer = own + panel % 2 * 64 * kPanel;
        if (thread == 0) bulk_wait_read<1>();
        named_barrier_sync(1 + consumer, 128);  // the store that read this buffer has done so
#pragma unroll
        for (int j = 0; j < 8; ++j) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const int row = thread / 32 * 16 + lane / 4 + 8 * half, i = 32 * panel + 4 * j + 2 * half;
            *reinterpret_cast<__nv_bfloat162*>(
                buffer + swizzled_offset(Swizzle::bytes128, row, 16 * j + lane % 4 * 4)) =
                __floats2bfloat162_rn(sums[i], sums[i + 1]);
          }
        }
        fence_async_proxy();
        named_barrier_sync(1 + consumer, 128);
        if (thread == 0) {
          tensor_store(&out_map, buffer, first_column + 64 * panel, first_query + 64 * consumer, head);
          bulk_commit();
        }
      }
    });
    if (thread == 0) bulk_wait<0>();
  }
}

// O^T = V^T P^T in tf32: tiles of 128 columns by 256 queries. V's stage is four panels of 32 keys by 32
// columns.
__global__ void __launch_bounds__(kGemmThreads, 1)
    multiply_values_tf32(const Problem problem, const __grid_constant__ CUtensorMap p_map,
                         const __grid_constant__ CUtensorMap v_map, float* out) {
  constexpr int kKeys = kStep<float>, kPanelBytes = kKeys * kPanel;
  extern __shared__ __align__(1024) unsigned char shared[];
  Ring& ring = *reinterpret_cast<Ring*>(shared);
  init_ring(ring);
  follow_previous_kernel();
  const int consumer = static_cast<int>(threadIdx.x / 128) - 1;
  RingPosition at;
  if (consumer < 0) {
    give_registers_back<40>();
    if (threadIdx.x != 0) return;
    for_each_value_tile<256, 128>(problem, [&](int head, int first_query, int first_column, int last_query) {
      produce(ring, at, problem.key_tiles(last_query, kKeys), sizeof(Stage),
              [&](Stage& stage, uint64_t* full, int step) {
                tensor_load(stage.large, &p_map, full, step * kKeys, first_query, head);
                for (int panel = 0; panel < 4; ++panel) {
                  tensor_load(stage.small + panel * kPanelBytes, &v_map, full, first_column + 32 * panel,
                              step * kKeys, head / problem.group);
                }
              });
    });
  } else {
    take_registers<232>();
    const int lane = threadIdx.x % 32, warp = threadIdx.x % 128 / 32;
    const int column = 64 * consumer + 16 * warp + lane / 4;  // of the tile; this and the eighth behind it
    for_each_value_tile<256, 128>(problem, [&](int head, int first_query, int first_column, int last_query) {
      float sums[128];
      const int steps = problem.key_tiles(last_query, kKeys);
      for (int step = 0; step < steps; ++step, at.next()) {
        mbarrier_wait(&ring.full[at.stage], at.parity);
        const Stage& stage = ring.stages[at.stage];
        const unsigned char* panel = stage.small + column / 32 * kPanelBytes;
        uint32_t a[4][4];  // V^T; while this warpgroup fetches it, the other one multiplies
#pragma unroll
        for (int k = 0; k < 4; ++k) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {  // keys 0 2 4 6, then 1 3 5 7, as P is stored
            const int key = 8 * k + lane % 4 * 2 + i / 2;
            a[k][i] = *reinterpret_cast<const uint32_t*>(
                panel + swizzled_offset(Swizzle::bytes128, key, 4 * (column % 32 + 8 * (i % 2))));
          }
        }
        const uint64_t b = k_major_descriptor(stage.large);
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < 4; ++k) wgmma_tf32(sums, a[k], advance(b, 32 * k), step > 0 || k > 0);
        wgmma_commit();
        wgmma_wait<0>();
        release(ring, at.stage);
      }
      wgmma_hold(sums);
      float* first = out + problem.q_offset(head) + first_column + column;
#pragma unroll
      for (int i = 0; i < 128; ++i) {  // eight lanes write 32 bytes of a row
        const int query = first_query + i / 4 * 8 + lane % 4 * 2 + i % 2, shift = i / 2 % 2 * 8;
        if (query < problem.q_len && first_column + column + shift < problem.head_dim)
          first[int64_t{query} * problem.head_dim + shift] = sums[i];
      }
    });
  }
}

Layout layout_of(const AttentionShape& s, int64_t multiprocessors) {
  const auto waves = [&](int keys) {
    return ceil_div(s.batch * s.q_heads * ceil_div(s.q_len, 128) * ceil_div(s.kv_len, keys),
                    multiprocessors) *
           keys;
  };
  return {static_cast<int>(round_up(s.kv_len, 64)), waves(128) < waves(256) ? 128 : 256};
}

template <class T>
const void* score_kernel(int keys) {
  return keys == 128 ? reinterpret_cast<const void*>(multiply_scores<T, 128>)
                     : reinterpret_cast<const void*>(multiply_scores<T, 256>);
}

int64_t score_bytes(const AttentionShape& s) {
  return round_up(s.rows() * round_up(s.kv_len, 64) * int64_t{sizeof(float)}, 1024);
}

Plan plan(const AttentionSpec& spec, Dtype dtype, const DeviceInfo& device) {
  const AttentionShape& s = spec.shape;
  const Layout layout = layout_of(s, device.multiprocessors);
  const int64_t heads = s.batch * s.q_heads, ring_bytes = sizeof(Ring);
  const bool bf16 = dtype == Dtype::bf16;
  const int64_t score_tiles = heads * ceil_div(s.q_len, 128) * ceil_div(s.kv_len, layout.score_keys);
  const int64_t value_tiles = bf16 ? heads * ceil_div(s.q_len, 128) * ceil_div(s.head_dim, 256)
                                   : heads * ceil_div(s.q_len, 256) * ceil_div(s.head_dim, 128);
  const auto persistent = [&](int64_t tiles) { return std::min<int64_t>(tiles, device.multiprocessors); };
  const Tile tile{.q = 128, .k = layout.score_keys, .d = bf16 ? 64 : 32, .stages = kStages};
  Plan plan{.tile = tile};
  plan.kernels = {
      {.name = "multiply_scores",
       .function =
           bf16 ? score_kernel<__nv_bfloat16>(layout.score_keys) : score_kernel<float>(layout.score_keys),
       .blocks = persistent(score_tiles),
       .threads = kGemmThreads,
       .shared_bytes = ring_bytes},
      {.name = "normalize_rows",
       .function = bf16 ? reinterpret_cast<const void*>(normalize_rows<__nv_bfloat16>)
                        : reinterpret_cast<const void*>(normalize_rows<float>),
       .blocks = ceil_div(s.rows() * 32, kSoftmaxThreads),
       .threads = kSoftmaxThreads},
      {.name = "multiply_values",
       .function = bf16 ? reinterpret_cast<const void*>(multiply_values_bf16)
                        : reinterpret_cast<const void*>(multiply_values_tf32),
       .blocks = persistent(value_tiles),
       .threads = kGemmThreads,
       .shared_bytes = bf16 ? round_up(ring_bytes, 1024) + kConsumers * 2 * 64 * kPanel : ring_bytes}};
  plan.workspace_bytes = score_bytes(s) + (bf16 ? s.rows() * layout.pitch * 2 : 0);
  plan.work = tiled_work(spec, dtype, tile, round_up(s.head_dim, 256), bf16 ? MathUnit::f16 : MathUnit::tf32);
  const auto workspace = static_cast<double>(plan.workspace_bytes);
  plan.work.l2_bytes += 3 * workspace;
  plan.work.dram_bytes += workspace > static_cast<double>(device.l2_bytes) ? 3 * workspace : 0;
  return plan;
}

CUtensorMap map_of(const void* data, Dtype dtype, int64_t heads, int64_t length, int64_t dim, int tile_rows) {
  return encode_tiles({.data = data,
                       .dtype = dtype,
                       .heads = heads,
                       .length = length,
                       .dim = dim,
                       .tile_rows = tile_rows,
                       .tile_columns = kPanel / static_cast<int>(bytes_of(dtype)),
                       .round_to_tf32 = dtype == Dtype::f32});
}

template <class T>
void launch_as(const AttentionSpec& spec, Dtype dtype, const Plan& plan, const Arguments& args) {
  const AttentionShape& s = spec.shape;
  const Problem problem = Problem::of(spec);
  const int64_t heads = s.batch * s.q_heads, kv_heads = s.batch * s.kv_heads;
  const Layout layout{static_cast<int>(round_up(s.kv_len, 64)), plan.tile.k};
  auto* scores = static_cast<float*>(args.workspace);
  auto* probabilities =
      reinterpret_cast<T*>(static_cast<char*>(args.workspace) + (sizeof(T) == 2 ? score_bytes(s) : 0));
  const KernelLaunch &first = plan.kernels[0], &second = plan.kernels[1], &third = plan.kernels[2];
  launch_early(layout.score_keys == 128 ? multiply_scores<T, 128> : multiply_scores<T, 256>, first, {},
               args.stream, problem, layout, map_of(args.q, dtype, heads, s.q_len, s.head_dim, 128),
               map_of(args.k, dtype, kv_heads, s.kv_len, s.head_dim, layout.score_keys), scores);
  launch_early(normalize_rows<T>, second, {}, args.stream, problem, layout.pitch,
               static_cast<const float*>(scores), probabilities);
  if constexpr (sizeof(T) == 2) {
    launch_early(multiply_values_bf16, third, {}, args.stream, problem,
                 map_of(probabilities, dtype, heads, s.q_len, layout.pitch, 128),
                 map_of(args.v, dtype, kv_heads, s.kv_len, s.head_dim, 64),
                 map_of(args.out, dtype, heads, s.q_len, s.head_dim, 64));
  } else {
    launch_early(multiply_values_tf32, third, {}, args.stream, problem,
                 map_of(probabilities, dtype, heads, s.q_len, layout.pitch, 256),
                 map_of(args.v, dtype, kv_heads, s.kv_len, s.head_dim, 32), static_cast<float*>(args.out));
  }
}

void launch(const AttentionSpec& spec, Dtype dtype, const Plan& plan, const Arguments& args) {
  with_element(dtype, [&](auto element) { launch_as<decltype(element)>(spec, dtype, plan, args); });
}

const Variant kVariant{
    .ladder = "large_dims",
    .rung = 6,
    .name = "wgmma",
    .idea =
        "two matrix products on Hopper's tensor cores with a softmax between; fp32 as tf32 (nmse below 1e-6)",
    .finding =
        "B 8, H 4, 512 x 512, d 2048 by graph replay: bf16 139 us, 494 TFLOP/s; tf32 235 to 259 us, 265 to "
        "292 TFLOP/s, as the power limit lets the clock be; with H 1 the tiles make one or two waves, and a "
        "tenth to a fifth less.",
    .limits = {.dtypes = {Dtype::f32, Dtype::bf16},
               .head_dim_max = 8192,
               .causal = true,
               .compute_capability = 90},
    .tolerance = {.f32 = 1e-6},
    .plan = plan,
    .launch = launch};
const VariantRegistration kRegistration(kVariant);

}  // namespace
}  // namespace splash::gpu
