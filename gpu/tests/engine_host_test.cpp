// What the engine guarantees before anything is launched. Needs no device.

#include <algorithm>
#include <string>

#include <doctest/doctest.h>

#include "core/error.h"
#include "core/workload.h"
#include "gpu/engine/tensor.h"
#include "gpu/engine/trace.h"
#include "gpu/engine/variant.h"
#include "gpu/engine/work.h"
#include "gpu/tests/h200.h"

using namespace splash;
using namespace splash::gpu;
using gpu::testing::h200;

namespace {

Plan small_plan(const AttentionSpec& spec, Dtype dtype, const DeviceInfo& /*device*/) {
  Plan plan{.tile = {.q = 32, .k = 64}};
  // Shared memory for K of one head, which is too much for many keys.
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

// The tiles of keys that hold a visible pair, found by looking at every pair.
std::vector<int64_t> tiles_by_hand(const AttentionSpec& spec, int64_t head, int64_t first_query,
                                   int64_t tile_q, int64_t tile_k) {
  const AttentionShape& s = spec.shape;
  std::vector<int64_t> tiles;
  for (int64_t k = 0; k < s.kv_len; k += tile_k) {
    bool any = false;
    for (int64_t i = first_query; i < std::min(first_query + tile_q, s.q_len); ++i) {
      const RowMask row = spec.mask.row(s, head / s.q_heads, head % s.q_heads, i);
      for (int64_t j = k; j < std::min(k + tile_k, s.kv_len); ++j) any |= row.visible(j);
    }
    if (any) tiles.push_back(k / tile_k);
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

TEST_CASE("the tiles that some query sees are those of a loop over all pairs") {
  enum class Kind { none, causal, positions, positions_of_heads, packed };
  for (const Kind kind :
       {Kind::none, Kind::causal, Kind::positions, Kind::positions_of_heads, Kind::packed}) {
    for (const auto& shape : {AttentionShape{2, 2, 1, 50, 70, 40}, AttentionShape{1, 1, 1, 70, 50, 8},
                              AttentionShape{1, 3, 3, 1, 1, 8}}) {
      AttentionSpec spec = softmax_spec(shape);
      spec.mask.causal = kind == Kind::causal;
      const int64_t heads = shape.batch * shape.q_heads;
      const int64_t tables = kind == Kind::positions ? 1 : kind == Kind::positions_of_heads ? heads : 0;
      for (int64_t i = 0; i < tables * shape.q_len; ++i)
        spec.mask.q_positions.push_back(7 * i % (shape.q_len + 3));
      for (int64_t i = 0; i < tables * shape.kv_len; ++i) spec.mask.k_positions.push_back(i % 60);
      if (kind == Kind::packed) {
        spec.mask.cu_seqlens_q = {0, shape.q_len / 3, shape.q_len};
        spec.mask.cu_seqlens_k = {0, shape.kv_len / 2, shape.kv_len};
      }
      SeenTiles seen(spec, 16, 24);
      for (int64_t head = 0; head < heads; ++head) {
        for (int64_t first = 0; first < shape.q_len; first += 16) {
          CAPTURE(to_string(shape));
          CHECK(seen.of(head, first) == tiles_by_hand(spec, head, first, 16, 24));
        }
      }
    }
  }
}

TEST_CASE(
    "work is counted from the trace: each tensor byte once for DRAM, a workspace only where L2 does not hold "
    "it") {
  Variant variant = kMadeUp;
  variant.trace = [](const AttentionSpec& spec, Dtype dtype, const Plan&) {
    const auto run = [rows = TensorRows(spec.shape, dtype)](int64_t block, BlockTrace& trace) {
      rows.read_q(trace, 0, 0, 10);
      rows.read_k(trace, block, 60, 10, {8, 16});  // four rows and sixteen of their columns
      trace.write(Operand::workspace, block * 1000, 1000);
      trace.read(Operand::workspace, block * 1000, 1000);
      trace.multiply(2, 3, 4);
    };
    return std::vector<KernelTrace>{{.kernel = "made_up", .blocks = 2, .run = run}};
  };
  const AttentionSpec spec = softmax_spec({1, 2, 2, 64, 64, 64});
  DeviceInfo device = h200();
  Work work = count_work(variant, spec, Dtype::f16, {}, device);
  CHECK(work.useful_flops == 4 * 64 * 2 * 64 * 64);
  CHECK(work.executed_flops == 2 * 2 * 3 * 4 * 2);
  CHECK(work.l2_bytes == 2 * (10 * 128 + 4 * 32 + 2000));
  CHECK(work.dram_bytes == 10 * 128 + 2 * 4 * 32);
  device.l2_bytes = 1999;
  work = count_work(variant, spec, Dtype::f16, {}, device);
  CHECK(work.dram_bytes == 10 * 128 + 2 * 4 * 32 + 2 * 2000);  // workspace beyond L2 is written and read back
}

TEST_CASE("of values that a query weighs, each newest key's row is read, within the head") {
  for (const auto& shape : {AttentionShape{1, 1, 1, 7, 20, 8}, AttentionShape{1, 1, 1, 20, 7, 8}}) {
    BlockTrace trace;
    const TensorRows rows(shape, Dtype::f32);
    rows.read_one_value_each(trace, 1, 3, 100);
    std::vector<int64_t> keys;
    for (const auto& range : trace.ranges()) {
      for (int64_t byte = 0; byte < range.bytes; byte += 32)
        keys.push_back((range.offset + byte) / 32 - shape.kv_len);
    }
    REQUIRE(keys.size() == static_cast<std::size_t>(shape.q_len - 3));
    for (int64_t i = 3; i < shape.q_len; ++i)
      CHECK(keys[static_cast<std::size_t>(i - 3)] ==
            (i + 7 * 20 + shape.kv_len - shape.q_len) % shape.kv_len);
  }
}

TEST_CASE("a view knows whether it is contiguous") {
  int memory = 0;
  auto view = DeviceTensorView::of(&memory, Dtype::f32, {2, 3, 5, 8});
  CHECK(view.contiguous());
  CHECK(view.size() == 240);
  view.strides[2] = 16;
  CHECK_FALSE(view.contiguous());
  view = DeviceTensorView::of(&memory, Dtype::f32, {1, 3, 5, 8});
  view.strides[0] = 999;  // the stride of an extent of 1 does not matter
  CHECK(view.contiguous());
}
