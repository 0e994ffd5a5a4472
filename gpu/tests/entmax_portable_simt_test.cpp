// The portable path's kernels themselves, run thread by thread on the CPU (simt/simt.h), against the double
// oracle: barriers, indices, lists and passes, without a GPU. The tensor cores' own rounding is not included.

#include "gpu/entmax/portable/kernels.cuh"
#include "gpu/tests/entmax_attention_scan.h"
#include "gpu/tests/entmax_simt.h"

namespace splash::gpu::entmax::portable {
alignas(1024) unsigned char dynamic[100 * 1024];  // shared memory of a block
}

using namespace splash;
using namespace splash::gpu;
using namespace splash::gpu::testing;
namespace portable = splash::gpu::entmax::portable;

namespace {

// in_lists: rows are computed in two launches, each of which gets a list of some.
template <class T, int kDim, class Check>
void run_case(const PortableCase& c, const Check& check, const entmax::Tuning& tuning = {},
              bool in_lists = false) {
  const AttentionShape& s = c.spec.shape;
  SimtRun<T> run(c);
  const entmax::MaskTables tables(c.spec);
  entmax::ForwardArguments arguments = run.arguments();
  arguments.mask = tables.at(tables.data());
  arguments.tuning = tuning;
  portable::PortableProblem p = portable::problem_of(c.spec, arguments);
  const auto words = static_cast<size_t>(p.heads * entmax::row_mask_words(p.q_len));

  using Tiles = portable::Tiles<T, kDim>;
  const auto blocks = static_cast<unsigned>(p.heads * ceil_div(s.q_len, Tiles::kQueries));
  const auto compute = [&](const entmax::RowList& rows) {
    std::vector<uint32_t> masks(words, rows.queries != nullptr ? 0 : 0xFFFFFFFF);
    p.broad_masks = masks.data();
    p.rows = rows;
    simt::poison_shared_memory(portable::dynamic);
    simt::run(blocks, Tiles::kThreads, test_seed(), [&] { portable::screen_kernel<T, kDim>(p); });
    const NamedRows deferred(masks, p.heads, p.q_len);
    p.rows = deferred.list();
    simt::poison_shared_memory(portable::dynamic);
    simt::run(blocks, Tiles::kThreads, test_seed() + 1, [&] { portable::stream_kernel<T, kDim>(p); });
  };
  if (in_lists) {
    std::mt19937_64 random(test_seed());
    std::vector<uint32_t> some(words), others(words);
    for (size_t i = 0; i < words; ++i) others[i] = ~(some[i] = static_cast<uint32_t>(random()));
    compute(NamedRows(some, p.heads, p.q_len).list());
    compute(NamedRows(others, p.heads, p.q_len).list());
  } else {
    compute({});
  }

  check(c, run.output(s), run.results);
}

const auto against_oracle = [](const auto&... results) { check_against_oracle(results...); };

template <class T>
void run_case(const PortableCase& c, const entmax::Tuning& tuning = {}, bool in_lists = false) {
  const int64_t dim = c.spec.shape.head_dim;
  if constexpr (sizeof(T) == 4) {
    if (dim <= 32) return run_case<T, 32>(c, against_oracle, tuning, in_lists);
  }
  if (dim <= 64) return run_case<T, 64>(c, against_oracle, tuning, in_lists);
  if (dim <= 128) return run_case<T, 128>(c, against_oracle, tuning, in_lists);
  run_case<T, 256>(c, against_oracle, tuning, in_lists);
}

void run_any_case(const PortableCase& c, bool in_lists = false) {
  if (c.dtype == Dtype::bf16) run_case<__nv_bfloat16>(c, {}, in_lists);
  if (c.dtype == Dtype::f16) run_case<__half>(c, {}, in_lists);
  if (c.dtype == Dtype::f32) run_case<float>(c, {}, in_lists);
}

}  // namespace

TEST_CASE("portable entmax on the CPU: problems in which all features meet, against the double oracle") {
  CaseDrawer drawer(test_seed());
  for (int i = 0; i < 60; ++i) run_any_case(drawer.draw());
}

TEST_CASE("portable entmax on the CPU: listed rows and no others are computed, against the double oracle") {
  CaseDrawer drawer(test_seed() + 14);
  for (int i = 0; i < 20; ++i) run_any_case(drawer.draw(), true);
}

TEST_CASE("portable entmax on the CPU: given thresholds and a k_keep a head, against the double oracle") {
  CaseDrawer drawer(test_seed() + 7);
  for (int i = 0; i < 30; ++i) run_any_case(drawer.draw_given());
  for (int i = 0; i < 6; ++i) {
    PortableCase c = drawer.draw();
    drawer.draw_head_k_keep(c);
    run_any_case(c);
  }
}

TEST_CASE("portable entmax on the CPU: every value of every knob, against the double oracle") {
  CaseDrawer drawer(test_seed() + 7);
  for (const entmax::Tuning& tuning : every_value(false)) {
    CAPTURE(to_string(tuning));
    const PortableCase c = drawer.draw();
    if (c.dtype == Dtype::bf16) run_case<__nv_bfloat16>(c, tuning);
    if (c.dtype == Dtype::f16) run_case<__half>(c, tuning);
    if (c.dtype == Dtype::f32) run_case<float>(c, tuning);
  }
}

TEST_CASE("portable entmax on the CPU: p, its sum, the support and the output at every alpha") {
  const auto scan = [](const auto&... results) { check_scan(results...); };
  for (const Pattern pattern : kPatterns) {
    for (const int64_t n : {1, 3, 64, 300}) run_case<float, 32>(scan_case(pattern, n, Dtype::f32), scan);
    run_case<__half, 64>(scan_case(pattern, 200, Dtype::f16), scan);
  }
  run_case<float, 32>(scan_case(Pattern::far_above, 4000, Dtype::f32), scan);
  run_case<float, 32>(scan_case(Pattern::near_equal, 4000, Dtype::f32), scan);
}
