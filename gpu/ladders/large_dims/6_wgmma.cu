// Rung 6, for sizes that fill the chip: attention with a large head_dim is two matrix products with a softmax
// between them. S = Q K^T sums over head_dim, P = softmax(S), and O = P V has head_dim columns. There are
// three launches. S stays in L2, and P overwrites it. The products are persistent wgmma kernels: a producer
// thread issues TMA loads of 48 KB stages, and two warpgroups multiply tiles of 128 x 256. bf16 is multiplied
// as it is. fp32 becomes tf32, rounded to nearest by TMA (nmse near 1e-7, where exact fp32 has 1e-13). tf32
// operands must be K-major, and V is not. For fp32 the second product is therefore O^T = V^T P^T, with V^T
// read from shared memory into registers. In each group of eight keys P stores the even ones before the odd
// ones, so that those reads meet no bank conflicts.
//
// Arithmetic at B 8, H 4, 512 x 512, head_dim 2048: 68.7 GFLOP take 90 us in bf16 at 760 TFLOP/s and 172 us
// in tf32 at 400. Q, K, V and O, moved once, are 268 (fp32: 537) MB and take less, 63 (126) us. A stage is
// 1024 cycles of products and 48 KB: 47 bytes per cycle, but L2 gives 35 (`splash ceilings`). So blocks work
// in pairs, and each loads half of the 256 columns' operand for both: 32 KB per stage, 31 bytes per cycle. Q,
// K, V and O stream through L2 with a hint to be evicted first, so that S and P, 33 MB, do not go to DRAM and
// back. Scores: 256 tiles on 132 multiprocessors, 1.94 of 2 waves. Values: 1024 tiles, 7.8 of 8 waves, with
// an epilogue of ~1000 cycles after every 8192. Softmax: 50 (67) MB within L2, ~10 us. Expect 108 us (74 %)
// and 205 us (74 %); rung 3 needs 3200.
//
// Observed: 130 and 240. Pairs and hints gain 3 to 5 % each, not 15: L2 is still 85 % busy in both products,
// and the power limit holds tf32 at 1.6 GHz. Prefetching Q and K into L2 four steps ahead costs 30 %.

#include "gpu/arch/mma.cuh"
#include "gpu/arch/wgmma_tf32.cuh"
#include "gpu/ladders/large_dims/gemm_ring.cuh"
#include "gpu/ladders/large_dims/normalize_rows.cuh"

namespace splash::gpu {
namespace {

using namespace large_dims;
using namespace arch;

template <class T>
constexpr int kStep = kPanel / int{sizeof(T)};  // elements of the sum per stage

// What the host decides.
struct Layout {
  int pitch = 0;       // of the rows of S and P, in elements
  int score_keys = 0;  // keys per tile of the scores: 128 or 256
};

// S [heads, q_len, pitch] = Q K^T, not scaled: rows are queries, columns keys. Tiles that no query sees stay
// unwritten.
template <class T, int kKeys>
__global__ void __launch_bounds__(kGemmThreads, 1)
    multiply_scores(const Problem problem, const Layout layout, const __grid_constant__ CUtensorMap q_map,
                    const __grid_constant__ CUtensorMap k_map, float* scores) {
  extern __shared__ __align__(1024) unsigned char shared[];
  run<kKeys>(
      *reinterpret_cast<Ring*>(shared), {problem.heads, problem.q_len, problem.kv_len},
      [&](const ProductTile& tile) {
        const bool seen = tile.first_column < problem.key_tiles(tile.last_row, kKeys) * kKeys;
        return seen ? (problem.head_dim + kStep<T> - 1) / kStep<T> : 0;
      },
      [&](const ProductTile& tile, Stage& stage, uint64_t* full, int step) {
        tensor_load(stage.rows, &q_map, full, evict_first(), step * kStep<T>, tile.first_row, tile.head);
        for_own_parts([&](int part, int ranks) {
          tensor_load_multicast(stage.columns + part * kKeys / 4 * kPanel, &k_map, full, ranks, evict_first(),
                                step * kStep<T>, tile.first_column + part * kKeys / 4,
                                tile.head / problem.group);
        });
      },
      [&](const ProductTile& tile, int consumer, Ring& ring, RingPosition<kStages>& at, int steps) {
        float sums[kKeys / 2];
        consume(ring, at, steps, sums, [&](Stage& stage, int step) {
          const uint64_t a = k_major_descriptor(stage.rows + consumer * 64 * kPanel);
          const uint64_t b = k_major_descriptor(stage.columns);
#pragma unroll
          for (int k = 0; k < 4; ++k)
            wgmma<T>(sums, advance(a, 32 * k), advance(b, 32 * k), step > 0 || k > 0);
        });
        const int lane = threadIdx.x % 32, warp = threadIdx.x % 128 / 32;
        const int row = tile.first_row + 64 * consumer + 16 * warp + lane / 4;
        const int column = tile.first_column + lane % 4 * 2;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          if (row + 8 * half >= problem.q_len) continue;
          float* out = scores + (int64_t{tile.head} * problem.q_len + row + 8 * half) * layout.pitch + column;
#pragma unroll
          for (int j = 0; j < kKeys / 8; ++j) {
            if (column + 8 * j < layout.pitch)
              *reinterpret_cast<float2*>(out + 8 * j) =
                  make_float2(sums[4 * j + 2 * half], sums[4 * j + 2 * half + 1]);
          }
        }
      });
}

// O = P V in bf16: rows are queries, columns head_dim. V's stage is four panels of 64 keys by 64 columns.
__global__ void __launch_bounds__(kGemmThreads, 1)
    multiply_values_bf16(const Problem problem, const __grid_constant__ CUtensorMap p_map,
                         const __grid_constant__ CUtensorMap v_map,
                         const __grid_constant__ CUtensorMap out_map) {
  using T = __nv_bfloat16;
  constexpr int kKeys = kStep<T>, kPanelBytes = kKeys * kPanel;
  extern __shared__ __align__(1024) unsigned char shared[];
  unsigned char* results = shared + round_up(sizeof(Ring), 1024);  // [consumer][half][64 rows * kPanel]
  const int lane = threadIdx.x % 32, thread = threadIdx.x % 128;
  run<256>(
      *reinterpret_cast<Ring*>(shared), {problem.heads, problem.q_len, problem.head_dim},
      [&](const ProductTile& tile) { return problem.key_tiles(tile.last_row, kKeys); },
      [&](const ProductTile& tile, Stage& stage, uint64_t* full, int step) {
        tensor_load(stage.rows, &p_map, full, step * kKeys, tile.first_row, tile.head);
        for_own_parts([&](int panel, int ranks) {
          tensor_load_multicast(stage.columns + panel * kPanelBytes, &v_map, full, ranks, evict_first(),
                                tile.first_column + 64 * panel, step * kKeys, tile.head / problem.group);
        });
      },
      [&](const ProductTile& tile, int consumer, Ring& ring, RingPosition<kStages>& at, int steps) {
        float sums[128];
        consume(ring, at, steps, sums, [&](Stage& stage, int step) {
          const uint64_t a = k_major_descriptor(stage.rows + consumer * 64 * kPanel);
          const uint64_t b = mn_major_descriptor(stage.columns, kPanelBytes);
#pragma unroll
          for (int k = 0; k < 4; ++k)
            wgmma<T, Major::mn>(sums, advance(a, 32 * k), advance(b, 16 * kPanel * k), step > 0 || k > 0);
        });
#pragma unroll
        for (int panel = 0; panel < 4; ++panel) {  // 64 rows by 64 columns, through two buffers
          unsigned char* buffer = results + (consumer * 2 + panel % 2) * 64 * kPanel;
          if (thread == 0) bulk_wait_read<1>();
          named_barrier_sync(1 + consumer, 128);  // the earlier store that read this buffer is done
#pragma unroll
          for (int j = 0; j < 8; ++j) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
              const int row = thread / 32 * 16 + lane / 4 + 8 * half, i = 32 * panel + 4 * j + 2 * half;
              *reinterpret_cast<uint32_t*>(buffer +
                                           swizzled_offset(Swizzle::bytes128, row, 16 * j + lane % 4 * 4)) =
                  pack_pair<T>(sums[i], sums[i + 1]);
            }
          }
          fence_async_proxy();
          named_barrier_sync(1 + consumer, 128);
          if (thread == 0) {
            tensor_store(&out_map, buffer, evict_first(), tile.first_column + 64 * panel,
                         tile.first_row + 64 * consumer, tile.head);
            bulk_commit();
          }
        }
      });
  if (thread == 0) bulk_wait<0>();
}

// O^T = V^T P^T in tf32: rows are head_dim, columns queries. V's stage is four panels of 32 keys by 32 rows.
__global__ void __launch_bounds__(kGemmThreads, 1)
    multiply_values_tf32(const Problem problem, const __grid_constant__ CUtensorMap p_map,
                         const __grid_constant__ CUtensorMap v_map, float* out) {
  constexpr int kKeys = kStep<float>, kPanelBytes = kKeys * kPanel;
  extern __shared__ __align__(1024) unsigned char shared[];
  run<256>(
      *reinterpret_cast<Ring*>(shared), {problem.heads, problem.head_dim, problem.q_len},
      [&](const ProductTile& tile) { return problem.key_tiles(tile.first_column + 255, kKeys); },
      [&](const ProductTile& tile, Stage& stage, uint64_t* full, int step) {
        for (int panel = 0; panel < 4; ++panel) {
          tensor_load(stage.rows + panel * kPanelBytes, &v_map, full, evict_first(),
                      tile.first_row + 32 * panel, step * kKeys, tile.head / problem.group);
        }
        for_own_parts([&](int part, int ranks) {
          tensor_load_multicast(stage.columns + part * 64 * kPanel, &p_map, full, ranks, evict_normal(),
                                step * kKeys, tile.first_column + part * 64, tile.head);
        });
      },
      [&](const ProductTile& tile, int consumer, Ring& ring, RingPosition<kStages>& at, int steps) {
        const int lane = threadIdx.x % 32, warp = threadIdx.x % 128 / 32;
        const int row = 64 * consumer + 16 * warp + lane / 4 * 2;  // of the tile; this and the next
        float sums[128];
        for (int step = 0; step < steps; ++step, at.next()) {
          mbarrier_wait(&ring.full[at.stage], at.parity);
          const Stage& stage = ring.stages[at.stage];
          const unsigned char* panel = stage.rows + row / 32 * kPanelBytes;
          uint32_t a[4][4];  // V^T; while this warpgroup fetches it, the other one multiplies
#pragma unroll
          for (int k = 0; k < 4; ++k) {
#pragma unroll
            for (int i = 0; i < 2; ++i) {  // keys 0 2 4 6, then 1 3 5 7, as P is stored
              const uint2 pair = *reinterpret_cast<const uint2*>(
                  panel + swizzled_offset(Swizzle::bytes128, 8 * k + lane % 4 * 2 + i,
                                          row % 32 * int{sizeof(float)}));
              a[k][2 * i] = pair.x, a[k][2 * i + 1] = pair.y;
            }
          }
          const uint64_t b = k_major_descriptor(stage.columns);
          wgmma_fence();
#pragma unroll
          for (int k = 0; k < 4; ++k) wgmma_tf32(sums, a[k], advance(b, 32 * k), step > 0 || k > 0);
          wgmma_commit();
          wgmma_wait<0>();
          release(ring, at.stage);
        }
        wgmma_hold(sums);
        float* first = out + problem.q_offset(tile.head) + tile.first_row + row;
#pragma unroll
        for (int i = 0; i < 64; ++i) {  // eight lanes write 64 bytes of a row of O
          const int query = tile.first_column + i / 2 * 8 + lane % 4 * 2 + i % 2;
          if (query < problem.q_len && tile.first_row + row < problem.head_dim) {
            __stcs(reinterpret_cast<float2*>(first + int64_t{query} * problem.head_dim),
                   make_float2(sums[i / 2 * 4 + i % 2], sums[i / 2 * 4 + i % 2 + 2]));
          }
        }
      });
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

Plan plan(const AttentionSpec& spec, Dtype dtype, const DeviceInfo& device) {
  const AttentionShape& s = spec.shape;
  const Layout layout = layout_of(s, device.multiprocessors);
  const int64_t heads = s.batch * s.q_heads, ring_bytes = sizeof(Ring);
  const bool bf16 = dtype == Dtype::bf16;
  const auto blocks = [&](int64_t rows, int64_t columns, int64_t tile_columns) {
    return blocks_of(heads, rows, ceil_div(columns, tile_columns), device.multiprocessors);
  };
  const Tile tile{.q = 128, .k = layout.score_keys, .d = bf16 ? 64 : 32, .stages = kStages};
  Plan plan{.tile = tile};
  plan.kernels = {
      {.name = "multiply_scores",
       .function =
           bf16 ? score_kernel<__nv_bfloat16>(layout.score_keys) : score_kernel<float>(layout.score_keys),
       .blocks = blocks(s.q_len, s.kv_len, layout.score_keys),
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
       .blocks = bf16 ? blocks(s.q_len, s.head_dim, 256) : blocks(s.head_dim, s.q_len, 256),
       .threads = kGemmThreads,
       .shared_bytes = bf16 ? round_up(ring_bytes, 1024) + kConsumers * 2 * 64 * kPanel : ring_bytes}};
  plan.workspace_bytes = s.rows() * layout.pitch * int64_t{sizeof(float)};
  plan.unit = bf16 ? MathUnit::f16 : MathUnit::tf32;
  plan.tile.instruction_q = 64;
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
  const int64_t p_pitch = layout.pitch * int64_t{sizeof(float)} / int64_t{sizeof(T)};
  auto* scores = static_cast<float*>(args.workspace);
  const KernelLaunch &first = plan.kernels[0], &second = plan.kernels[1], &third = plan.kernels[2];
  launch_early(layout.score_keys == 128 ? multiply_scores<T, 128> : multiply_scores<T, 256>, first,
               grid_of(s.q_len), args.stream, problem, layout,
               map_of(args.q, dtype, heads, s.q_len, s.head_dim, 128),
               map_of(args.k, dtype, kv_heads, s.kv_len, s.head_dim, layout.score_keys / 4), scores);
  launch_early(normalize_rows<T>, second, {}, args.stream, problem, layout.pitch, scores);
  if constexpr (sizeof(T) == 2) {
    launch_early(multiply_values_bf16, third, grid_of(s.q_len), args.stream, problem,
                 map_of(scores, dtype, heads, s.q_len, p_pitch, 128),
                 map_of(args.v, dtype, kv_heads, s.kv_len, s.head_dim, 64),
                 map_of(args.out, dtype, heads, s.q_len, s.head_dim, 64));
  } else {
    launch_early(multiply_values_tf32, third, grid_of(s.head_dim), args.stream, problem,
                 map_of(scores, dtype, heads, s.q_len, p_pitch, 64),
                 map_of(args.v, dtype, kv_heads, s.kv_len, s.head_dim, 32), static_cast<float*>(args.out));
  }
}

void launch(const AttentionSpec& spec, Dtype dtype, const Plan& plan, const Arguments& args) {
  with_element(dtype, [&](auto element) { launch_as<decltype(element)>(spec, dtype, plan, args); });
}

// Each piece of work is one cluster's tile: its rows, and columns that one of its blocks loads for all.
std::vector<KernelTrace> trace(const AttentionSpec& spec, Dtype dtype, const Plan& plan) {
  const Problem p = Problem::of(spec);
  const TensorRows rows(spec.shape, dtype);
  const bool bf16 = dtype == Dtype::bf16;
  const int step = bf16 ? kStep<__nv_bfloat16> : kStep<float>, keys = plan.tile.k;
  const int64_t pitch = round_up(p.kv_len, 64) * int64_t{sizeof(float)}, element = bytes_of(dtype);
  const auto row_at = [=](int head, int64_t query) { return (int64_t{head} * p.q_len + query) * pitch; };
  const auto tile_of = [](int64_t tile, int64_t rows, int64_t tile_rows, int64_t columns,
                          int64_t tile_columns) {
    const int64_t row_tiles = ceil_div(rows, tile_rows), column_tiles = ceil_div(columns, tile_columns);
    return ProductTile{static_cast<int>(tile / column_tiles / row_tiles),
                       static_cast<int>(tile / column_tiles % row_tiles * tile_rows),
                       static_cast<int>(tile % column_tiles * tile_columns),
                       static_cast<int>((tile / column_tiles % row_tiles + 1) * tile_rows - 1)};
  };
  const auto tiles_of = [&](int64_t rows, int64_t tile_rows, int64_t columns, int64_t tile_columns) {
    return p.heads * ceil_div(rows, tile_rows) * ceil_div(columns, tile_columns);
  };
  const int ranks = grid_of(p.q_len).ranks, value_ranks = bf16 ? ranks : grid_of(p.head_dim).ranks;
  const int64_t q_rows = int64_t{kTileRows} * ranks, value_rows = int64_t{kTileRows} * value_ranks;

  const auto scores = [=](int64_t piece, BlockTrace& trace) {
    const ProductTile tile = tile_of(piece, p.q_len, q_rows, p.kv_len, keys);
    if (tile.first_column >= p.key_tiles(tile.last_row, keys) * keys) return;
    for (int64_t dim = 0; dim < p.head_dim; dim += step) {
      rows.read_q(trace, tile.head, tile.first_row, q_rows, {dim, step});
      rows.read_k(trace, tile.head / p.group, tile.first_column, keys, {dim, step});
      trace.multiply(q_rows, keys, step);
      trace.next_step();
    }
    const int64_t column = tile.first_column * int64_t{sizeof(float)};
    trace.write(Operand::workspace, row_at(tile.head, tile.first_row) + column,
                std::min<int64_t>(keys * int64_t{sizeof(float)}, pitch - column),
                std::min(q_rows, p.q_len - int64_t{tile.first_row}), pitch);
  };
  const auto softmax = [=](int64_t block, BlockTrace& trace) {
    constexpr int kRows = kSoftmaxThreads / 32, kHeld = 512;  // keys that a warp holds of its row
    for (int64_t row = block * kRows; row < std::min((block + 1) * kRows, int64_t{p.heads} * p.q_len);
         ++row) {
      const int seen = p.visible_keys(static_cast<int>(row % p.q_len));
      for (int pass = 0; pass < (seen > kHeld ? 2 : 1); ++pass)
        trace.read(Operand::workspace, row * pitch, round_up(seen, 4) * int64_t{sizeof(float)});
      // If a row has no more keys than a warp holds, their powers are not computed again.
      const int64_t held = ceil_div(seen, kHeld), written = ceil_div(pitch / int64_t{sizeof(float)}, kHeld);
      trace.exponentiate(held, kHeld, 32);
      trace.exponentiate(written - (seen > 0 && seen <= kHeld ? 1 : 0), kHeld, 0);
    }
    trace.next_step();
    for (int64_t row = block * kRows; row < std::min((block + 1) * kRows, int64_t{p.heads} * p.q_len); ++row)
      trace.write(Operand::workspace, row * pitch, pitch / int64_t{sizeof(float)} * element);
  };
  const auto read_probabilities = [=](BlockTrace& trace, int head, int64_t query, int64_t queries,
                                      int64_t key) {
    trace.read(Operand::workspace, row_at(head, query) + key * element, step * element,
               std::min(queries, p.q_len - query), pitch);
  };
  const auto values = [=](int64_t piece, BlockTrace& trace) {
    const ProductTile tile = bf16 ? tile_of(piece, p.q_len, value_rows, p.head_dim, 256)
                                  : tile_of(piece, p.head_dim, value_rows, p.q_len, 256);
    const int64_t query = bf16 ? tile.first_row : tile.first_column, queries = bf16 ? value_rows : 256;
    const TensorRows::Columns columns{bf16 ? tile.first_column : tile.first_row, bf16 ? 256 : value_rows};
    const int tiles = p.key_tiles(static_cast<int>(query + queries - 1), step);
    for (int64_t key = 0; key < int64_t{tiles} * step; key += step) {
      read_probabilities(trace, tile.head, query, queries, key);
      rows.read_v(trace, tile.head / p.group, key, step, columns);
      trace.multiply(value_rows, 256, step);
      trace.next_step();
    }
    rows.write_out(trace, tile.head, query, queries, columns);
  };
  return {{.kernel = "multiply_scores",
           .blocks = tiles_of(p.q_len, q_rows, p.kv_len, keys),
           .cluster = ranks,
           .run = scores},
          {.kernel = "normalize_rows", .blocks = plan.kernels[1].blocks, .run = softmax},
          {.kernel = "multiply_values",
           .blocks = bf16 ? tiles_of(p.q_len, value_rows, p.head_dim, 256)
                          : tiles_of(p.head_dim, value_rows, p.q_len, 256),
           .cluster = value_ranks,
           .run = values}};
}

const Variant kVariant{
    .ladder = "large_dims",
    .rung = 6,
    .name = "wgmma",
    .idea =
        "two matrix products on Hopper's tensor cores with a softmax between; fp32 as tf32 (nmse below 1e-6)",
    .finding =
        "B 8, H 4, 512 x 512, d 2048 by graph replay: bf16 129 to 133 us, 516 to 531 TFLOP/s; tf32 237 to "
        "250 us, 274 to 289 TFLOP/s, as the power limit lets the clock be; blocks in pairs and hints to L2 "
        "took 9 % off both, but L2 is still 85 % busy.",
    .limits = {.dtypes = {Dtype::f32, Dtype::bf16},
               .head_dim_max = 8192,
               .causal = true,
               .compute_capability = 90},
    .tolerance = {.f32 = 1e-6},
    .plan = plan,
    .launch = launch,
    .trace = trace};
const VariantRegistration kRegistration(kVariant);

}  // namespace
}  // namespace splash::gpu
