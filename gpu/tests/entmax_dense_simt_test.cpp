// Forward's dense kernel on Hopper, run thread by thread on the CPU (simt/simt.h), against the double oracle:
// passes, rings, barriers, shares and the stored support, without a GPU.

#include "gpu/entmax/hopper/dense/kernel.cuh"
#include "gpu/tests/entmax_attention_scan.h"
#include "gpu/tests/entmax_simt.h"

namespace splash::gpu::entmax::hopper {
alignas(1024) unsigned char dynamic[227 * 1024];  // shared memory of a block
}

using namespace splash;
using namespace splash::gpu;
using namespace splash::gpu::testing;

namespace {

// The rows that marked(row) names, by blocks that take shares of them in turn. Returns what they wrote.
template <class T, int kPanels, class Marked>
SimtRun<T> run_dense(const PortableCase& c, uint64_t order, const Marked& marked) {
  using Tiles = entmax::hopper::DenseTiles<kPanels>;
  const AttentionShape& s = c.spec.shape;
  SimtRun<T> run(c);
  const entmax::MaskTables tables(c.spec);
  entmax::ForwardArguments arguments = run.arguments();
  arguments.mask = tables.at(tables.data());
  entmax::ForwardProblem p = entmax::problem_of(c.spec, arguments);
  std::vector<uint32_t> masks(static_cast<size_t>(p.heads * entmax::row_mask_words(p.q_len)), 0);
  for (int64_t row = 0; row < s.rows(); ++row) {
    const int64_t query = row % s.q_len, word = row / s.q_len * entmax::row_mask_words(p.q_len) + query / 32;
    if (marked(row)) masks[static_cast<size_t>(word)] |= 1u << query % 32;
  }
  const NamedRows listed(masks, p.heads, p.q_len);
  p.rows = listed.list();
  uint32_t next_share = 0;
  p.next_share = &next_share;
  const auto map_of = [&](const void* data) {
    return arch::TensorOnCpu{.data = static_cast<const uint16_t*>(data),
                             .heads = static_cast<int>(s.batch * s.kv_heads),
                             .length = p.kv_len,
                             .dim = p.head_dim,
                             .tile_rows = Tiles::kKeys}
        .map();
  };
  const CUtensorMap k_map = map_of(p.k), v_map = map_of(p.v);
  static_assert(sizeof(Tiles) <= sizeof entmax::hopper::dynamic);
  simt::poison_shared_memory(entmax::hopper::dynamic);
  const auto launch = [&]<bool kRanges>() {
    simt::run(2, Tiles::kThreads, order,
              [&] { entmax::hopper::dense_kernel<T, kPanels, kRanges>(p, k_map, v_map); });
  };
  p.has_ranges() ? launch.template operator()<true>() : launch.template operator()<false>();
  return run;
}

template <class T, int kPanels = 1>
void check(const PortableCase& c) {
  CAPTURE(c.name);
  CAPTURE(to_string(c.dtype));
  const auto marked = [](int64_t row) { return row % 100 != 7; };
  const SimtRun<T> first = run_dense<T, kPanels>(c, test_seed(), marked),
                   second = run_dense<T, kPanels>(c, test_seed() + 9, marked);
  std::vector<char> left_out(static_cast<size_t>(c.spec.shape.rows()));
  RowResults results = first.results;
  for (size_t row = 0; row < left_out.size(); ++row) {
    left_out[row] = !marked(static_cast<int64_t>(row));
    if (left_out[row]) results.counts[row] = 0;
  }
  check_against_oracle(c, first.output(c.spec.shape), results, left_out);
  CHECK(std::memcmp(first.out.data(), second.out.data(), first.out.size() * sizeof(T)) == 0);
  CHECK(first.results.counts == second.results.counts);
  CHECK(std::memcmp(first.results.tau.data(), second.results.tau.data(), 4 * left_out.size()) == 0);
}

PortableCase case_of(const char* name, const AttentionShape& shape, std::vector<double> alpha,
                     double variance, Dtype dtype, const Mask& mask = {}) {
  PortableCase c{.name = name, .dtype = dtype};
  c.spec.shape = shape;
  c.spec.normalizer = {NormalizerKind::entmax, std::move(alpha)};
  c.spec.mask = mask;
  c.inputs = make_inputs<double>({.seed = test_seed(), .query_variance = variance}, shape);
  round_inputs(c.inputs, dtype);
  return c;
}

}  // namespace

TEST_CASE("dense path on the CPU: every kind of alpha, shares in turn, the same bits in any order") {
  check<__nv_bfloat16>(
      case_of("square", {1, 2, 1, 330, 700, 64}, {1.5}, 0.05, Dtype::bf16, {.causal = true}));
  check<__half>(case_of("linear", {1, 1, 1, 80, 300, 40}, {2}, 0.05, Dtype::f16));
  check<__nv_bfloat16>(
      case_of("powers", {1, 2, 2, 90, 900, 64}, {1.4, 1.25}, 0.3, Dtype::bf16, {.causal = true}));
  check<__half>(case_of("huge logits", {1, 1, 1, 70, 400, 64}, {1.5}, 1e6, Dtype::f16));
  check<__nv_bfloat16>(
      case_of("window", {1, 1, 1, 150, 600, 64}, {1.5}, 0.05, Dtype::bf16, {.causal = true, .window = 200}));
}

TEST_CASE("dense path on the CPU: head_dims, queries in shared memory among them") {
  check<__nv_bfloat16, 2>(
      case_of("128", {1, 2, 1, 200, 300, 128}, {1.5}, 0.05, Dtype::bf16, {.causal = true}));
  check<__half, 2>(case_of("96", {1, 1, 1, 70, 300, 96}, {1.3}, 0.05, Dtype::f16));
  check<__nv_bfloat16, 3>(
      case_of("168", {1, 1, 1, 70, 300, 168}, {1.5}, 0.05, Dtype::bf16, {.causal = true, .window = 90}));
  check<__half, 4>(case_of("256", {1, 1, 1, 70, 200, 256}, {2}, 0.05, Dtype::f16));
}

TEST_CASE("dense path on the CPU: more keys than a partial sum takes") {
  check<__nv_bfloat16>(case_of("many keys", {1, 1, 1, 64, 9000, 64}, {1.5}, 0.1, Dtype::bf16));
}

TEST_CASE(
    "dense path on the CPU: rows without keys, and keys without weight, beside values that are no numbers") {
  PortableCase c = case_of("no keys", {1, 2, 1, 150, 90, 64}, {1.5}, 0.05, Dtype::bf16, {.causal = true});
  const AttentionShape& s = c.spec.shape;
  for (int64_t head = 0; head < s.q_heads; ++head)
    for (int64_t i = 0; i < s.q_len; ++i) *c.inputs.q.row(0, head, i) = 1;
  for (int64_t j = 3; j < s.kv_len; j += 7) {
    *c.inputs.k.row(0, 0, j) = -std::numeric_limits<double>::infinity();
    *c.inputs.v.row(0, 0, j) = std::numeric_limits<double>::quiet_NaN();
  }
  check<__nv_bfloat16>(c);
}
