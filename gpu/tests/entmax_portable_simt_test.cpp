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

template <class T, int kDim, class Check>
void run_case(const PortableCase& c, const Check& check, const entmax::Tuning& tuning = {}) {
  const AttentionShape& s = c.spec.shape;
  SimtRun<T> run(c);
  const entmax::MaskTables tables(c.spec);
  entmax::ForwardArguments arguments = run.arguments();
  arguments.mask = tables.at(tables.data());
  arguments.tuning = tuning;
  portable::PortableProblem p = portable::problem_of(c.spec, arguments);
  const int words = entmax::row_mask_words(p.q_len);
  std::vector<uint32_t> masks(static_cast<size_t>(p.heads * words), 0xFFFFFFFF);
  p.broad_masks = masks.data();

  using Tiles = portable::Tiles<T, kDim>;
  const auto blocks = static_cast<unsigned>(p.heads * ceil_div(s.q_len, Tiles::kQueries));
  simt::poison_shared_memory(portable::dynamic);
  simt::run(blocks, Tiles::kThreads, test_seed(), [&] { portable::screen_kernel<T, kDim>(p); });
  const NamedRows deferred(masks, p.heads, p.q_len);
  p.rows = deferred.list();
  simt::poison_shared_memory(portable::dynamic);
  simt::run(blocks, Tiles::kThreads, test_seed() + 1, [&] { portable::stream_kernel<T, kDim>(p); });

  check(c, run.output(s), run.results);
}

const auto against_oracle = [](const auto&... results) { check_against_oracle(results...); };

template <class T>
void run_case(const PortableCase& c, const entmax::Tuning& tuning = {}) {
  const int64_t dim = c.spec.shape.head_dim;
  if constexpr (sizeof(T) == 4) {
    if (dim <= 32) return run_case<T, 32>(c, against_oracle, tuning);
  }
  if (dim <= 64) return run_case<T, 64>(c, against_oracle, tuning);
  if (dim <= 128) return run_case<T, 128>(c, against_oracle, tuning);
  run_case<T, 256>(c, against_oracle, tuning);
}

void run_any_case(const PortableCase& c) {
  if (c.dtype == Dtype::bf16) run_case<__nv_bfloat16>(c);
  if (c.dtype == Dtype::f16) run_case<__half>(c);
  if (c.dtype == Dtype::f32) run_case<float>(c);
}

}  // namespace

TEST_CASE("portable entmax on the CPU: problems in which all features meet, against the double oracle") {
  CaseDrawer drawer(test_seed());
  for (int i = 0; i < 60; ++i) run_any_case(drawer.draw());
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
