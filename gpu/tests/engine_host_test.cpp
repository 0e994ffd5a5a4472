// What the engine promises before anything is launched: no device needed.

#include <string>

#include <doctest/doctest.h>

#include "core/error.h"
#include "core/workload.h"
#include "gpu/engine/tensor.h"
#include "gpu/engine/variant.h"
#include "gpu/engine/work.h"
#include "gpu/tests/h200.h"

using namespace splash;
using namespace splash::gpu;
using gpu::testing::h200;

namespace {

Plan small_plan(const AttentionSpec& spec, Dtype dtype, const DeviceInfo& /*device*/) {
  Plan plan{.tile = {.q = 32, .k = 64}};
  // Room for K of one head: too much for long keys.
  plan.kernels = {{.name = "made_up",
                   .blocks = 1,
                   .threads = 32,
                   .shared_bytes = spec.shape.kv_len * spec.shape.head_dim * bytes_of(dtype)}};
  return plan;
}

const Variant kMadeUp{.ladder = "made_up",
                      .rung = 3,
                      .name = "example",
                      .idea = "nothing is computed",
                      .limits = {.dtypes = {Dtype::f16, Dtype::bf16},
                                 .head_dim_min = 16,
                                 .head_dim_max = 128,
                                 .head_dim_multiple = 16,
                                 .causal = true,
                                 .grouped_heads = false},
                      .plan = small_plan};
const VariantRegistration kRegistration(kMadeUp);

const Variant kWider{.ladder = "made_up",
                     .rung = 4,
                     .name = "wider",
                     .idea = "nothing is computed, of anything",
                     .limits = {.dtypes = {Dtype::f16}, .head_dim_max = 512, .positions = true},
                     .plan = small_plan};
const VariantRegistration kWiderRegistration(kWider);

AttentionSpec softmax_spec(AttentionShape shape) {
  AttentionSpec spec;
  spec.shape = shape;
  spec.normalizer.kind = NormalizerKind::softmax;
  return spec;
}

std::string reason(const AttentionSpec& spec, Dtype dtype, const DeviceInfo& device = h200()) {
  return unsupported_reason(kMadeUp, spec, dtype, device);
}

bool says(const std::string& sentence, const char* part) {
  return sentence.find(part) != std::string::npos;
}

// Pairs of tiles that hold a visible pair, by looking at every pair.
int64_t tiles_by_hand(const AttentionSpec& spec, int64_t tile_q, int64_t tile_k) {
  const AttentionShape& s = spec.shape;
  int64_t tiles = 0;
  for (int64_t b = 0; b < s.batch; ++b) {
    for (int64_t h = 0; h < s.q_heads; ++h) {
      for (int64_t q = 0; q < s.q_len; q += tile_q) {
        for (int64_t k = 0; k < s.kv_len; k += tile_k) {
          bool any = false;
          for (int64_t i = q; i < std::min(q + tile_q, s.q_len); ++i) {
            const RowMask row = spec.mask.row(s, b, h, i);
            for (int64_t j = k; j < std::min(k + tile_k, s.kv_len); ++j) any |= row.visible(j);
          }
          tiles += any ? 1 : 0;
        }
      }
    }
  }
  return tiles;
}

}  // namespace

TEST_CASE("a variant is found by its id, and an unknown one names those of its ladder") {
  CHECK(&find_variant("made_up/3-example") == &kMadeUp);
  CHECK_THROWS_WITH_AS(find_variant("made_up/7"),
                       "variant 'made_up/7' is unknown; there are: made_up/3-example made_up/4-wider",
                       InvalidArgument);
}

TEST_CASE("every limit is named in one sentence") {
  const AttentionSpec good = softmax_spec({1, 2, 2, 64, 64, 64});
  CHECK(reason(good, Dtype::f16).empty());
  CHECK(reason(good, Dtype::f32) == "takes float16, bfloat16, not float32");

  AttentionSpec spec = good;
  spec.shape.head_dim = 72;
  CHECK(reason(spec, Dtype::f16) == "takes a head_dim from 16 to 128 that is a multiple of 16, not 72");
  spec.shape.head_dim = 256;
  CHECK(says(reason(spec, Dtype::f16), "from 16 to 128"));

  spec = good;
  spec.shape.kv_heads = 1;
  CHECK(reason(spec, Dtype::f16) == "takes as many key heads as query heads, not 1 and 2");
  spec = good;
  spec.normalizer.kind = NormalizerKind::entmax;
  CHECK(reason(spec, Dtype::f16) == "takes the normalizers softmax, not entmax");
  spec = good;
  spec.selection.kind = SelectionKind::top_k_row;
  CHECK(reason(spec, Dtype::f16) == "takes the selections all, not top_k_row");
  spec = good;
  spec.mask.q_positions.assign(64, 0);
  spec.mask.k_positions.assign(64, 0);
  CHECK(reason(spec, Dtype::f16) == "takes no mask by positions");

  DeviceInfo old = h200();
  old.name = "an old one";
  old.compute_major = 7;
  old.compute_minor = 5;
  CHECK(reason(good, Dtype::f16, old) == "needs compute capability 8.0 or more, and an old one has 7.5");

  spec = good;
  spec.shape.kv_len = 4096;
  CHECK(reason(spec, Dtype::f16) ==
        "needs 524288 bytes of shared memory a block here, and an H200 has 232448");
}

TEST_CASE("an unsupported problem is refused with what would take it") {
  AttentionSpec spec = softmax_spec({1, 2, 2, 64, 64, 256});
  CHECK_THROWS_WITH_AS(
      require_supported(kMadeUp, spec, Dtype::f16, h200()),
      "made_up/3-example takes a head_dim from 16 to 128 that is a multiple of 16, not 256; these take "
      "it: made_up/4-wider",
      Unsupported);
  spec.mask.causal = true;
  CHECK_THROWS_WITH_AS(
      require_supported(kMadeUp, spec, Dtype::f16, h200()),
      "made_up/3-example takes a head_dim from 16 to 128 that is a multiple of 16, not 256; no variant "
      "takes this problem",
      Unsupported);
}

TEST_CASE("Hopper's own instructions run on 9.0 alone") {
  Variant hopper = kMadeUp;
  hopper.limits.compute_capability = 90;
  DeviceInfo newer = h200();
  newer.compute_major = 10;
  const AttentionSpec spec = softmax_spec({1, 2, 2, 64, 64, 64});
  CHECK(unsupported_reason(hopper, spec, Dtype::f16, h200()).empty());
  CHECK_FALSE(unsupported_reason(hopper, spec, Dtype::f16, newer).empty());
}

TEST_CASE("the tiled model counts what a loop over all pairs counts") {
  const Tile tile{.q = 16, .k = 24};
  for (const bool causal : {false, true}) {
    for (const bool positions : {false, true}) {
      for (const auto& shape : {AttentionShape{2, 2, 1, 50, 70, 40}, AttentionShape{1, 1, 1, 70, 50, 8},
                                AttentionShape{1, 3, 3, 1, 1, 8}}) {
        AttentionSpec spec = softmax_spec(shape);
        spec.mask.causal = causal;
        if (positions) {
          for (int64_t i = 0; i < shape.batch * shape.q_len; ++i)
            spec.mask.q_positions.push_back(7 * i % shape.q_len);
          for (int64_t i = 0; i < shape.batch * shape.kv_len; ++i) spec.mask.k_positions.push_back(i % 60);
        }
        if (causal && positions) continue;  // may count more than is visible: work.h says so
        CAPTURE(to_string(shape));
        CAPTURE(causal);
        CAPTURE(positions);
        const Work work = tiled_work(spec, Dtype::bf16, tile, 64, MathUnit::f16);
        const auto tiles = static_cast<double>(tiles_by_hand(spec, 16, 24));
        const auto dim = static_cast<double>(shape.head_dim);
        CHECK(work.executed_flops == 4 * 64 * 16 * 24 * tiles);
        CHECK(work.useful_flops == 4 * dim * static_cast<double>(visible_pairs(shape, spec.mask)));
        CHECK(work.useful_flops <= work.executed_flops);
        CHECK(work.dram_bytes == compulsory_bytes(shape, Dtype::bf16));
        CHECK(work.l2_bytes == 2 * dim * (2.0 * static_cast<double>(shape.rows()) + 2 * 24 * tiles));
      }
    }
  }
}

TEST_CASE("the tiled model of shared keys counts listed and visible pairs") {
  AttentionSpec spec = softmax_spec({2, 4, 2, 70, 90, 32});
  spec.mask.causal = true;
  spec.selection = make_shared_keys(spec.shape, spec.mask, 32, 0.3, 5);
  const Tile tile{.q = 64, .k = 8};
  double useful = 0, tiles = 0;
  for (int64_t b = 0; b < 2; ++b) {
    for (int64_t h = 0; h < 4; ++h) {
      for (int64_t i = 0; i < 70; ++i) {
        const int32_t* keys = spec.selection.keys_of(spec.shape, b, h, i);
        int64_t listed = 0;
        for (int64_t n = 0; n < spec.selection.k_keep; ++n) {
          if (keys[n] < 0) continue;
          ++listed;
          useful += spec.mask.row(spec.shape, b, h, i).visible(keys[n]) ? 1 : 0;
        }
        const int64_t key_tiles = (listed + 7) / 8;
        if (i % 32 == 0 && h % 2 == 0) tiles += static_cast<double>(key_tiles);
      }
    }
  }
  const Work work = tiled_work(spec, Dtype::f16, tile, 32, MathUnit::f16);
  CHECK(work.useful_flops == 4 * 32 * useful);
  CHECK(work.executed_flops == 4 * 32 * tiles * 64 * 8);
}

TEST_CASE("a view knows whether it is contiguous") {
  int memory = 0;
  auto view = DeviceTensorView::of(&memory, Dtype::f32, {2, 3, 5, 8});
  CHECK(view.contiguous());
  CHECK(view.size() == 240);
  view.strides[2] = 16;
  CHECK_FALSE(view.contiguous());
  view = DeviceTensorView::of(&memory, Dtype::f32, {1, 3, 5, 8});
  view.strides[0] = 999;  // of an extent of 1
  CHECK(view.contiguous());
}
