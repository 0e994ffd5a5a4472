// Every rung of the ladder kascade on lists that no anchor would make, against the double oracle.

#include "core/random.h"
#include "core/workload.h"
#include "cpu_ref/attention/forward.h"
#include "gpu/engine/attention.h"
#include "gpu/tests/nmse.h"
#include "gpu/tests/skip_without_gpu.h"

using namespace splash;
using namespace splash::gpu;

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
      const AttentionSpec spec{.shape = shape,
                               .scale = scale,
                               .normalizer = {NormalizerKind::softmax, {1.5}},
                               .selection = lists_beyond_the_mask(shape),
                               .mask = {.causal = true}};
      auto inputs = make_inputs<double>({}, shape);
      for (Tensor<double>* tensor : {&inputs.q, &inputs.k, &inputs.v}) {
        for (int64_t i = 0; i < tensor->size(); ++i)
          tensor->data()[i] = round_to(Dtype::bf16, tensor->data()[i]);
      }
      const auto expected = cpu_ref::attention_forward<double>(spec, inputs.q, inputs.k, inputs.v).out;
      const DeviceTensor q = DeviceTensor::from(stream, Dtype::bf16, inputs.q),
                         k = DeviceTensor::from(stream, Dtype::bf16, inputs.k),
                         v = DeviceTensor::from(stream, Dtype::bf16, inputs.v);
      for (const Variant* variant : all_variants()) {
        if (!unsupported_reason(*variant, spec, Dtype::bf16, device).empty()) continue;
        CAPTURE(variant->id());
        CAPTURE(to_string(shape));
        DeviceTensor out(stream, Dtype::bf16, q.view().extents);
        out.buffer().fill(0xFF);
        PreparedAttention(*variant, spec, Dtype::bf16, stream)
            .enqueue(q.view(), k.view(), v.view(), out.view());
        CHECK(testing::nmse(out.to_host(), expected) <= variant->tolerance.bf16);
      }
    }
  }
}
