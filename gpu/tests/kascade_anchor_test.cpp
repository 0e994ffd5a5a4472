// The anchor pass against its double oracle: the same keys, except those whose sums are within rounding of
// the k-th.

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "core/random.h"
#include "core/workload.h"
#include "cpu_ref/attention/forward.h"
#include "cpu_ref/attention/tile_top_k.h"
#include "gpu/engine/attention.h"
#include "gpu/ladders/kascade/anchor.h"
#include "gpu/tests/nmse.h"
#include "gpu/tests/skip_without_gpu.h"

using namespace splash;
using namespace splash::gpu;
using namespace splash::gpu::kascade;

namespace {

// Relative error of a sum of probabilities: float scores err by some 2^-24 |score| sqrt(head_dim), the
// exponential by 2^-22.
constexpr double kRounding = 3e-5, kSmallest = 1e-35;

struct Problem {
  AttentionSpec spec;
  Dtype dtype = Dtype::bf16;
  AnchorOptions options{};
  Workload workload{};
};

AttentionInputs<double> rounded_inputs(const Problem& problem) {
  auto inputs = make_inputs<double>(problem.workload, problem.spec.shape);
  for (Tensor<double>* tensor : {&inputs.q, &inputs.k}) {
    for (int64_t i = 0; i < tensor->size(); ++i)
      tensor->data()[i] = round_to(problem.dtype, tensor->data()[i]);
  }
  return inputs;
}

Selection run(const Problem& problem, const AttentionInputs<double>& inputs) {
  const Stream stream;
  const DeviceTensor q = DeviceTensor::from(stream, problem.dtype, inputs.q);
  const DeviceTensor k = DeviceTensor::from(stream, problem.dtype, inputs.k);
  const AnchorPass anchor(problem.spec, problem.dtype, problem.options, stream);
  anchor.enqueue(q.view(), k.view());
  Selection first = anchor.to_host();
  anchor.enqueue(q.view(), k.view());
  CHECK(anchor.to_host().keys == first.keys);
  return first;
}

cpu_ref::TileTopK expected_of(const Problem& problem, const AttentionInputs<double>& inputs) {
  return cpu_ref::tile_top_k(problem.spec, inputs.q, inputs.k,
                             {.share = problem.options.share, .k = problem.options.k});
}

// A key that is in only one of the two lists must be within rounding of the smallest sum in the oracle's
// list.
void compare_list(const int32_t* ours, const int32_t* theirs, int64_t k_keep, const double* pooled) {
  const auto length = std::find(theirs, theirs + k_keep, -1) - theirs;
  REQUIRE(std::find(ours, ours + k_keep, -1) - ours == length);
  if (length == 0) return;
  double smallest = INFINITY;
  for (int64_t i = 0; i < length; ++i) smallest = std::min(smallest, pooled[theirs[i]]);
  std::vector<int32_t> differing;
  std::set_symmetric_difference(ours, ours + length, theirs, theirs + length, std::back_inserter(differing));
  for (const int32_t key : differing) {
    CAPTURE(key);
    CHECK(std::abs(pooled[key] - smallest) <= kRounding * smallest + kSmallest);
  }
}

void check(const Problem& problem) {
  CAPTURE(to_string(problem.spec.shape));
  CAPTURE(problem.spec.mask.causal);
  const auto inputs = rounded_inputs(problem);
  const Selection ours = run(problem, inputs);
  const auto expected = expected_of(problem, inputs);
  REQUIRE(ours.k_keep == expected.selection.k_keep);
  CHECK_NOTHROW(ours.validate(problem.spec.shape));
  const int64_t lists = static_cast<int64_t>(ours.keys.size()) / ours.k_keep;
  for (int64_t list = 0; list < lists; ++list) {
    CAPTURE(list);
    compare_list(ours.keys.data() + list * ours.k_keep, expected.selection.keys.data() + list * ours.k_keep,
                 ours.k_keep, expected.pooled.data() + list * problem.spec.shape.kv_len);
  }
}

Problem problem_of(const AttentionShape& shape, bool causal) {
  return {
      .spec = {.shape = shape, .normalizer = {NormalizerKind::softmax, {1.5}}, .mask = {.causal = causal}}};
}

const std::vector<AttentionShape> kShapes{
    {1, 1, 1, 1, 1, 8},     {2, 4, 1, 129, 129, 128}, {1, 8, 2, 33, 700, 64},  {1, 2, 1, 200, 90, 40},
    {1, 8, 1, 70, 257, 72}, {1, 3, 3, 65, 513, 128},  {1, 4, 1, 64, 5000, 64}, {1, 12, 2, 40, 300, 16}};

}  // namespace

TEST_CASE("the anchor pass keeps the oracle's keys: shapes, masks, types, shares") {
  SKIP_WITHOUT_GPU();
  for (const AttentionShape& shape : kShapes) {
    for (const bool causal : {false, true}) {
      Problem problem = problem_of(shape, causal);
      check(problem);
      problem.dtype = Dtype::f16;
      problem.options.share = 1;
      check(problem);
      problem.options = {.k = 7};
      problem.spec.scale = -0.3;
      check(problem);
    }
  }
}

TEST_CASE("a small workspace makes slabs and changes nothing") {
  SKIP_WITHOUT_GPU();
  Problem problem = problem_of({2, 4, 2, 150, 300, 64}, true);
  const auto inputs = rounded_inputs(problem);
  const Selection whole = run(problem, inputs);
  problem.options.workspace_limit = 3 * 300 * 4;
  CHECK(run(problem, inputs).keys == whole.keys);
  problem.options.workspace_limit = 1;
  CHECK(run(problem, inputs).keys == whole.keys);
}

TEST_CASE("of equal sums the lower key is kept") {
  SKIP_WITHOUT_GPU();
  Problem problem = problem_of({1, 4, 1, 64, 400, 64}, false);
  problem.workload = {.kind = WorkloadKind::ties, .clusters = 5};
  const auto inputs = rounded_inputs(problem);
  CHECK(run(problem, inputs).keys == expected_of(problem, inputs).selection.keys);
}

TEST_CASE("a NaN query still gives a list, and leaves the other tiles alone") {
  SKIP_WITHOUT_GPU();
  Problem problem = problem_of({1, 2, 1, 96, 200, 64}, true);
  auto inputs = rounded_inputs(problem);
  const Selection clean = run(problem, inputs);
  inputs.q.row(0, 1, 40)[3] = std::nan("");
  const Selection spoilt = run(problem, inputs);
  CHECK_NOTHROW(spoilt.validate(problem.spec.shape));
  for (const int64_t tile : {0, 2}) {
    CHECK(std::equal(clean.keys.begin() + tile * clean.k_keep, clean.keys.begin() + (tile + 1) * clean.k_keep,
                     spoilt.keys.begin() + tile * clean.k_keep));
  }
}

TEST_CASE("what the anchor pass does not take is refused") {
  SKIP_WITHOUT_GPU();
  const Stream stream;
  const auto prepare = [&](const Problem& problem) {
    const AnchorPass anchor(problem.spec, problem.dtype, problem.options, stream);
  };
  Problem problem = problem_of({1, 1, 1, 40, 40, 64}, true);
  CHECK_NOTHROW(prepare(problem));
  problem.dtype = Dtype::f32;
  CHECK_THROWS_WITH_AS(prepare(problem), "the anchor pass takes float16 and bfloat16, not float32",
                       Unsupported);
  problem = problem_of({1, 1, 1, 40, 40, 136}, true);
  CHECK_THROWS_AS(prepare(problem), Unsupported);
  problem = problem_of({1, 1, 1, 40, 40, 64}, true);
  problem.options.share = 0;
  CHECK_THROWS_AS(prepare(problem), InvalidArgument);
  problem.options = {.k = -1};
  CHECK_THROWS_AS(prepare(problem), InvalidArgument);
}

namespace {

// Lists drawn from all keys, whatever the mask lets through; every third list is empty.
Selection lists_beyond_the_mask(const AttentionShape& shape) {
  Selection selection{.kind = SelectionKind::shared_keys, .k_keep = shape.kv_len, .block = 32, .keys = {}};
  const int64_t lists = shape.batch * shape.kv_heads * selection.tiles(shape);
  for (int64_t list = 0; list < lists; ++list) {
    for (int64_t key = 0; key < shape.kv_len; ++key) {
      if (list % 3 != 1 && CounterRandom(7).bits(list * shape.kv_len + key) % 3 == 0)
        selection.keys.push_back(static_cast<int32_t>(key));
    }
    selection.keys.resize((list + 1) * shape.kv_len, -1);
  }
  return selection;
}

}  // namespace

TEST_CASE(
    "every rung attends to the same keys as the oracle: groups of any size, lists past the mask, signs") {
  SKIP_WITHOUT_GPU();
  const Stream stream;
  const DeviceInfo device = list_devices().at(stream.device());
  for (const AttentionShape& shape :
       {AttentionShape{2, 8, 2, 75, 333, 128}, AttentionShape{1, 6, 1, 40, 300, 64},
        AttentionShape{1, 8, 1, 100, 500, 40}, AttentionShape{1, 3, 1, 33, 70, 128}}) {
    for (const double scale : {0.0, -0.05}) {
      Problem problem = problem_of(shape, true);
      problem.spec.scale = scale;
      problem.spec.selection = lists_beyond_the_mask(shape);
      auto inputs = rounded_inputs(problem);
      for (int64_t i = 0; i < inputs.v.size(); ++i)
        inputs.v.data()[i] = round_to(problem.dtype, inputs.v.data()[i]);
      const auto expected =
          cpu_ref::attention_forward<double>(problem.spec, inputs.q, inputs.k, inputs.v).out;
      const DeviceTensor q = DeviceTensor::from(stream, problem.dtype, inputs.q),
                         k = DeviceTensor::from(stream, problem.dtype, inputs.k),
                         v = DeviceTensor::from(stream, problem.dtype, inputs.v);
      for (const Variant* variant : all_variants()) {
        if (!unsupported_reason(*variant, problem.spec, problem.dtype, device).empty()) continue;
        CAPTURE(variant->id());
        CAPTURE(to_string(shape));
        DeviceTensor out(stream, problem.dtype, q.view().extents);
        out.buffer().fill(0xFF);
        PreparedAttention(*variant, problem.spec, problem.dtype, stream)
            .enqueue(q.view(), k.view(), v.view(), out.view());
        CHECK(testing::nmse(out.to_host(), expected) <= variant->tolerance.bf16);
      }
    }
  }
}
