// Rung 1, source 003's main proposal (S3.9): sixteen queries a block share K and V, with online softmax over
// tiles of 64 keys. K's tile lies in shared memory; a value of V is read once into a register that serves all
// sixteen queries. The document forgets that neither Q's tile nor the outputs fit: sixteen rows of head_dim
// 8192 are 512 KB, more than a multiprocessor's registers or shared memory. So Q passes through shared memory
// in chunks of head_dim, and where there is more than one tile of keys the outputs are accumulated in memory
// (fp32, L2).
//
// Arithmetic, head_dim 8192, 4 heads x 16 x 16, fp32: K and V leave L2 once instead of 16 times (4 MB, not
// 64), but 4 blocks are left on 132 multiprocessors. Each moves 2 MB: at some 60 bytes a cycle that one
// multiprocessor can receive that is 35 000 cycles = 20 us if loads were always in flight; with a barrier on
// both sides of each of 256 chunks of 32 dims (~1000 cycles each) 250 000 cycles = 140 us. So: slower than
// rung 0 here, whatever the traffic says.

#include <algorithm>

#include "gpu/ladders/large_dims/tile_16.cuh"

namespace splash::gpu {
namespace {

using namespace large_dims;

// `accumulated` [heads, q_len, head_dim] is out itself for fp32, and not used where one tile holds all keys.
template <class T>
__global__ void __launch_bounds__(kThreads)
    sixteen_queries(const Problem problem, const T* q, const T* k, const T* v, float* accumulated, T* out) {
  __shared__ alignas(16) ScoreTile tile;
  __shared__ OperandTiles operands;
  const int q_tiles = (problem.q_len + kQueries - 1) / kQueries;
  const int head = blockIdx.x / q_tiles, first_query = blockIdx.x % q_tiles * kQueries;
  const int head_dim = problem.head_dim, q_rows = min(kQueries, problem.q_len - first_query);
  const int64_t first_row = problem.q_offset(head) + int64_t{first_query} * head_dim;
  const int query = threadIdx.x / 16, key = threadIdx.x % 16;

  reset(tile);
  const int tiles = problem.key_tiles(first_query + kQueries - 1, kKeys);
  for (int key_tile = 0; key_tile < tiles; ++key_tile) {
    const int first_key = key_tile * kKeys, k_rows = min(kKeys, problem.kv_len - first_key);
    const int64_t first_key_row = problem.kv_offset(head) + int64_t{first_key} * head_dim;
    float scores[4] = {};
    add_scores(operands, q + first_row, k + first_key_row, q_rows, k_rows, head_dim, 0, head_dim, scores);
    for (int j = 0; j < 4; ++j) {
      const bool visible = first_key + key + 16 * j < problem.visible_keys(first_query + query);
      tile.weights[query][key + 16 * j] = visible ? scores[j] * problem.scale : -INFINITY;
    }
    online_softmax(tile);

    for (int column = threadIdx.x; column < head_dim; column += kThreads) {
      float sums[kQueries] = {};
      for (int row = 0; key_tile > 0 && row < q_rows; ++row)
        sums[row] = accumulated[first_row + int64_t{row} * head_dim + column] * tile.correction[row];
      add_values(tile, v + first_key_row + column, k_rows, head_dim, sums);
      for (int row = 0; row < q_rows; ++row) {
        const int64_t at = first_row + int64_t{row} * head_dim + column;
        if (key_tile + 1 < tiles) {
          accumulated[at] = sums[row];
        } else {
          out[at] = from_float<T>(sums[row] * normalization(tile.sum[row]));
        }
      }
    }
    __syncthreads();  // the weights have been used
  }
}

template <class T>
const void* kernel() {
  return reinterpret_cast<const void*>(sixteen_queries<T>);
}

Plan plan(const AttentionSpec& spec, Dtype dtype, const DeviceInfo& /*device*/) {
  const AttentionShape& s = spec.shape;
  const Tile tile{.q = kQueries, .k = kKeys, .d = kChunk};
  const bool scratch = dtype != Dtype::f32 && s.kv_len > kKeys;
  return {
      .tile = tile,
      .kernels = {{.name = "sixteen_queries",
                   .function = with_element(dtype, [](auto element) { return kernel<decltype(element)>(); }),
                   .blocks = s.batch * s.q_heads * ceil_div(s.q_len, kQueries),
                   .threads = kThreads}},
      .workspace_bytes = scratch ? s.rows() * s.head_dim * int64_t{sizeof(float)} : 0};
}

void launch(const AttentionSpec& spec, Dtype dtype, const Plan& plan, const Arguments& args) {
  with_element(dtype, [&](auto element) {
    using T = decltype(element);
    sixteen_queries<T><<<plan.kernels[0].blocks, kThreads, 0, args.stream>>>(
        Problem::of(spec), static_cast<const T*>(args.q), static_cast<const T*>(args.k),
        static_cast<const T*>(args.v), static_cast<float*>(dtype == Dtype::f32 ? args.out : args.workspace),
        static_cast<T*>(args.out));
  });
  check_launch("sixteen_queries");
}

// Sixteen rows of queries do not fit L1 beside K and V: each tile of keys reads them again. So do the outputs
// between tiles.
std::vector<KernelTrace> trace(const AttentionSpec& spec, Dtype dtype, const Plan& plan) {
  const auto sums = dtype == Dtype::f32 ? Operand::out : Operand::workspace;
  const auto run = [sums, p = Problem::of(spec), rows = TensorRows(spec.shape, dtype)](int64_t block,
                                                                                       BlockTrace& trace) {
    const int q_tiles = static_cast<int>(ceil_div(p.q_len, kQueries));
    const int head = static_cast<int>(block) / q_tiles, kv_head = head / p.group;
    const int first_query = static_cast<int>(block) % q_tiles * kQueries;
    const int tiles = p.key_tiles(first_query + kQueries - 1, kKeys);
    const int64_t row_bytes = p.head_dim * int64_t{sizeof(float)},
                  at = (int64_t{head} * p.q_len + first_query) * row_bytes,
                  bytes = std::min(kQueries, p.q_len - first_query) * row_bytes;
    for (int tile = 0; tile < tiles; ++tile) {
      const int first_key = tile * kKeys, k_rows = std::min(kKeys, p.kv_len - first_key);
      rows.read_q(trace, head, first_query, kQueries);
      rows.read_k(trace, kv_head, first_key, kKeys);
      trace.multiply(kQueries, kKeys, round_up(p.head_dim, kChunk));
      trace.exponentiate(kQueries, kKeys, 1);
      trace.next_step();
      if (tile > 0) trace.read(sums, at, bytes);
      rows.read_v(trace, kv_head, first_key, kKeys);
      trace.multiply(kQueries, p.head_dim, round_up(k_rows, 4));
      trace.next_step();
      if (tile + 1 < tiles) trace.write(sums, at, bytes);
    }
    rows.write_out(trace, head, first_query, kQueries);
  };
  return {{.kernel = "sixteen_queries", .blocks = plan.kernels[0].blocks, .through_l1 = true, .run = run}};
}

const Variant kVariant{
    .ladder = "large_dims",
    .rung = 1,
    .name = "sixteen-queries",
    .idea = "sixteen queries a block share tiles of K and V, with online softmax",
    .finding =
        "7.7 times slower than rung 0 at 8192 (492 us), where 4 blocks are left, each waiting at two "
        "barriers a chunk; with 1024 blocks (B 8, H 4, 512 x 512, d 2048) the saved traffic gains 1.2 times.",
    .predicted = {.over = "0-one-query", .low = 10, .high = 20, .claim = "S3.9a"},
    .limits =
        {
            .dtypes = {Dtype::f32, Dtype::bf16},
            .head_dim_max = 8192,
            .causal = true,
            .compute_capability = 75,
        },
    .plan = plan,
    .launch = launch,
    .trace = trace};
const VariantRegistration kRegistration(kVariant);

}  // namespace
}  // namespace splash::gpu
