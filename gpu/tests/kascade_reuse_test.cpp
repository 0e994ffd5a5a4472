// Attention to an anchor's lists against the double oracle over the same keys, and what the kernels do not
// take.

#include <cmath>

#include "core/error.h"
#include "cpu_ref/attention/forward.h"
#include "gpu/kascade/kascade.h"
#include "gpu/tests/kascade_case.h"
#include "gpu/tests/nmse.h"
#include "gpu/tests/skip_without_gpu.h"

using namespace splash;
using namespace splash::gpu;
using namespace splash::gpu::kascade;
using namespace splash::gpu::testing;

namespace {

// Attention to the keys that find() gives, each head by another's, against the oracle over these keys.
void check_reuse(const KascadeCase& c) {
  const Stream stream;
  const AttentionShape& shape = c.spec.shape;
  const Dtype dtype = c.dtype;
  CAPTURE(to_string(shape));
  const auto inputs = rounded_inputs(c);
  const std::vector<int32_t> lists = find(c, inputs);
  std::vector<int32_t> heads(shape.kv_heads);
  for (int64_t h = 0; h < shape.kv_heads; ++h) heads[h] = static_cast<int32_t>((h + 1) % shape.kv_heads / 2);
  AttentionSpec spec = c.spec;
  spec.selection = {.kind = SelectionKind::shared_keys, .k_keep = c.most(), .block = kTile};
  const int64_t of_head = c.tiles() * c.most();
  for (int64_t head = 0; head < shape.batch * shape.kv_heads; ++head) {
    const int64_t from = head / shape.kv_heads * shape.kv_heads + heads[head % shape.kv_heads];
    for (int64_t i = 0; i < of_head; ++i) {
      const int32_t key = lists[from * of_head + i];
      spec.selection.keys.push_back(key == shape.kv_len ? -1 : key);
    }
  }
  const auto expected = cpu_ref::attention_forward<double>(spec, inputs.q, inputs.k, inputs.v).out;
  const DeviceTensor q = DeviceTensor::from(stream, dtype, inputs.q),
                     k = DeviceTensor::from(stream, dtype, inputs.k),
                     v = DeviceTensor::from(stream, dtype, inputs.v);
  const DeviceBuffer keys = on_device(stream, lists), counts = on_device(stream, c.counts()),
                     of_heads = on_device(stream, heads);
  DeviceBuffer workspace(stream, reuse_bytes(c.spec, c.most()));
  workspace.fill(0xFF);
  DeviceTensor out(stream, dtype, q.view().extents);
  out.buffer().fill(0xFF);
  attend_to_keys(c.spec, dtype,
                 {.q = q.view().data,
                  .k = k.view().data,
                  .v = v.view().data,
                  .out = out.view().data,
                  .counts = static_cast<const int32_t*>(counts.data()),
                  .keys = static_cast<const int32_t*>(keys.data()),
                  .most = c.most(),
                  .heads = static_cast<const int32_t*>(of_heads.data()),
                  .workspace = workspace.data(),
                  .stream = stream.handle()});
  CHECK(nmse(out.to_host(), expected) <= 3e-5);
}

}  // namespace

TEST_CASE("kascade: reuse attends to the lists of the anchor's heads as the oracle does") {
  SKIP_WITHOUT_GPU();
  for (const AttentionShape& shape :
       {AttentionShape{2, 8, 2, 75, 333, 128}, AttentionShape{1, 6, 3, 40, 300, 64},
        AttentionShape{1, 8, 2, 100, 500, 40}, AttentionShape{1, 3, 3, 33, 70, 128},
        AttentionShape{3, 8, 4, 1, 2000, 128}, AttentionShape{1, 4, 2, 90, 50, 64},
        AttentionShape{1, 8, 2, 1, 9000, 128}, AttentionShape{1, 4, 2, 5, 5000, 72},
        AttentionShape{2, 8, 2, 75, 333, 256}, AttentionShape{1, 6, 3, 40, 1300, 192},
        AttentionShape{1, 12, 2, 100, 500, 200}, AttentionShape{1, 4, 2, 90, 50, 136},
        AttentionShape{3, 8, 4, 1, 2000, 256}, AttentionShape{1, 8, 2, 1, 9000, 248},
        AttentionShape{1, 1, 1, 1, 1, 256}, AttentionShape{3, 9, 3, 1, 8192, 64},  // parts and rows are odd
        AttentionShape{1, 5, 1, 3, 9000, 128}, AttentionShape{1, 40, 2, 1, 3000, 64}}) {
    KascadeCase c = case_of(shape);
    check_reuse(c);
    c.dtype = Dtype::f16;
    check_reuse(c);
  }
}

TEST_CASE("kascade: reuse in a padded batch takes of each sequence as many keys as there are") {
  SKIP_WITHOUT_GPU();
  for (const AttentionShape& shape :
       {AttentionShape{4, 8, 4, 1, 2000, 128}, AttentionShape{3, 4, 2, 5, 500, 72},
        AttentionShape{3, 2, 2, 7, 8, 64}, AttentionShape{4, 8, 4, 1, 2000, 256}}) {
    KascadeCase c = case_of(shape);
    c.starts = some_starts(shape);
    check_reuse(c);
  }
}

TEST_CASE("kascade: blocks reuse many lists one after the other, of one tile of keys, of some and of many") {
  SKIP_WITHOUT_GPU();
  // More lists than an H100 or H200 has multiprocessors.
  for (const AttentionShape& shape :
       {AttentionShape{36, 4, 4, 1, 1500, 40}, AttentionShape{36, 8, 4, 1, 1500, 136},
        AttentionShape{1, 4, 2, 2500, 2500, 64}, AttentionShape{1, 2, 1, 4500, 4500, 256}}) {
    KascadeCase c = case_of(shape);
    c.budget.share = 0.6;
    if (shape.q_len == 1) c.starts = some_starts(shape);
    check_reuse(c);
  }
}

TEST_CASE(
    "kascade: a step that attends to all keys gives the oracle's output, and the lists of one that does "
    "not") {
  SKIP_WITHOUT_GPU();
  for (const AttentionShape& shape :
       {AttentionShape{3, 8, 4, 1, 2000, 128}, AttentionShape{1, 4, 2, 5, 5000, 72},
        AttentionShape{2, 9, 3, 1, 4097, 64}, AttentionShape{1, 24, 1, 1, 2049, 256},
        AttentionShape{1, 32, 1, 1, 9000, 128}, AttentionShape{4, 4, 2, 16, 2500, 200},
        AttentionShape{1, 1, 1, 1, 1, 8}, AttentionShape{1, 2, 1, 1, 50001, 8}}) {
    for (const bool padded : {false, true}) {
      CAPTURE(to_string(shape));
      CAPTURE(padded);
      KascadeCase c = case_of(shape);
      c.dtype = padded ? Dtype::f16 : Dtype::bf16;
      if (padded && shape.kv_len > 1) c.starts = some_starts(shape);
      auto inputs = rounded_inputs(c);
      AttentionSpec of_one = c.spec;
      of_one.shape.batch = 1;
      Tensor<double> expected(shape.batch, shape.q_heads, shape.q_len, shape.head_dim);
      for (int64_t batch = 0; batch < shape.batch; ++batch) {
        const int64_t start = c.start(batch), kv_len = shape.kv_len - start;
        of_one.shape.kv_len = kv_len;
        AttentionInputs<double> one{Tensor<double>(1, shape.q_heads, shape.q_len, shape.head_dim),
                                    Tensor<double>(1, shape.kv_heads, kv_len, shape.head_dim),
                                    Tensor<double>(1, shape.kv_heads, kv_len, shape.head_dim)};
        std::copy_n(inputs.q.row(batch, 0, 0), one.q.size(), one.q.data());
        for (int64_t head = 0; head < shape.kv_heads; ++head) {
          std::copy_n(inputs.k.row(batch, head, start), kv_len * shape.head_dim, one.k.row(0, head, 0));
          std::copy_n(inputs.v.row(batch, head, start), kv_len * shape.head_dim, one.v.row(0, head, 0));
          for (Tensor<double>* padding : {&inputs.k, &inputs.v})  // may hold anything
            std::fill_n(padding->row(batch, head, 0), start * shape.head_dim, std::nan(""));
        }
        const auto out = cpu_ref::attention_forward<double>(of_one, one.q, one.k, one.v).out;
        std::copy_n(out.data(), out.size(), expected.row(batch, 0, 0));
      }
      const std::vector<int32_t> lists = find(c, inputs);
      Tensor<double> attended;
      CHECK(find(c, inputs, &attended) == lists);
      CHECK(nmse(attended, expected) <= 3e-5);
      c.workspace_lists = 1;
      CHECK(find(c, inputs, &attended) == lists);
      CHECK(nmse(attended, expected) <= 3e-5);
    }
  }
  Tensor<double> attended;
  const KascadeCase many = case_of({1, 8, 1, 5, 90, 64});
  CHECK_THROWS_AS(find(many, rounded_inputs(many), &attended), Unsupported);
}

TEST_CASE("kascade: what the kernels do not take is said") {
  const AttentionSpec spec = case_of({1, 4, 2, 40, 40, 64}).spec;
  CHECK(not_taken(spec, Dtype::bf16, 32, 90).empty());
  CHECK(not_taken(spec, Dtype::bf16, 32, 80) == "a GPU of compute capability 8.0");
  CHECK(not_taken(spec, Dtype::f32, 32, 90) == "float32");
  CHECK(not_taken(spec, Dtype::bf16, 16, 90) == "tiles of 16 queries");
  AttentionSpec other = spec;
  for (const int64_t taken : {136, 256}) {
    other.shape.head_dim = taken;
    CHECK(not_taken(other, Dtype::bf16, 32, 90).empty());
  }
  for (const int64_t refused : {100, 264}) {
    other.shape.head_dim = refused;
    CHECK(not_taken(other, Dtype::bf16, 32, 90) == "a head_dim of " + std::to_string(refused));
  }
  other = spec;
  other.mask.causal = false;
  CHECK(not_taken(other, Dtype::bf16, 32, 90) == "a mask that is not causal");
  other = spec;
  other.normalizer.kind = NormalizerKind::entmax;
  CHECK(not_taken(other, Dtype::bf16, 32, 90) == "entmax");
}
