// Kascade: plans, and the planner on q and k of a model's layers in host memory; an anchor's and a reusing
// layer's kernels in a GPU's. Addresses and streams of the latter come as integers; the callers have checked
// devices, dtypes and extents.

#include "gpu/kascade/kascade.h"

#include <array>
#include <nanobind/stl/array.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>
#include <string_view>

#include "core/kascade_plan.h"
#include "cpu_ref/kascade/planner.h"
#include "python/bindings/bindings.h"

#if SPLASH_HAVE_CUDA
#include "gpu/cuda_check.h"
#endif

namespace splash::python {
namespace {

using cpu_ref::LayerSimilarity;

template <class Value>
auto of_layers(Value KascadeLayer::*value) {
  return [value](const KascadePlan& plan) {
    std::vector<Value> values;
    for (const KascadeLayer& layer : plan.layers) values.push_back(layer.*value);
    return values;
  };
}

void make_similarity(LayerSimilarity* self, int64_t layers, int64_t q_heads, int64_t kv_heads, double budget,
                     int64_t tile, int64_t least_keys, std::string_view normalizer, double alpha,
                     int64_t tiles) {
  new (self) LayerSimilarity({layers, q_heads, kv_heads}, {.budget = {tile, budget, least_keys},
                                                           .normalizer = normalizer_from_string(normalizer),
                                                           .alpha = alpha,
                                                           .tiles = tiles});
}

void add_layer(LayerSimilarity& self, const TensorArray<float>& q, const TensorArray<float>& k,
               double scale) {
  const nb::gil_scoped_release release;
  self.add_layer(view(q), view(k), scale);
}

nb::object result(const LayerSimilarity& self, std::string_view over_tiles) {
  const cpu_ref::LayersShape& s = self.shape();
  return to_numpy(self.result(over_tiles_from_string(over_tiles)),
                  {s.layers, s.kv_heads, s.layers, s.kv_heads});
}

KascadePlan plan(const LayerSimilarity& self, const std::vector<double>& importance, int64_t anchors,
                 std::string_view over_tiles, std::string model, std::string made_by) {
  KascadePlan made = cpu_ref::plan_kascade(self, importance, anchors, over_tiles_from_string(over_tiles));
  made.model = std::move(model);
  made.made_by = std::move(made_by);
  return made;
}

#if SPLASH_HAVE_CUDA

// table, lengths, page_rows, token_rows, head_rows, pages, page_size.
gpu::kascade::Pages pages_of(const std::array<uintptr_t, 7>& numbers) {
  return {.table = at<const int32_t>(numbers[0]),
          .lengths = at<const int32_t>(numbers[1]),
          .page_rows = static_cast<int64_t>(numbers[2]),
          .token_rows = static_cast<int64_t>(numbers[3]),
          .head_rows = static_cast<int64_t>(numbers[4]),
          .pages = static_cast<int>(numbers[5]),
          .page_size = static_cast<int>(numbers[6])};
}

// One layer's shapes on one device.
class DeviceKascade {
 public:
  // sizes: batch, q_heads, kv_heads, q_len, kv_len, head_dim.
  DeviceKascade(const std::array<int64_t, 6>& sizes, double scale, std::string_view dtype, int device)
      : spec_{.shape = {sizes[0], sizes[1], sizes[2], sizes[3], sizes[4], sizes[5]},
              .scale = scale,
              .normalizer = {NormalizerKind::softmax},
              .mask = {.causal = true}},
        dtype_(dtype_from_string(dtype)),
        device_(device) {
    spec_.validate();
  }

  std::string not_taken(int64_t tile) const {
    const gpu::DeviceScope scope(device_);
    return gpu::kascade::not_taken_here(spec_, dtype_, tile);
  }

  int64_t find_bytes(bool attends) const { return gpu::kascade::find_bytes(spec_, attends); }

  int64_t reuse_bytes(int64_t most) const {
    const gpu::DeviceScope scope(device_);
    return gpu::kascade::reuse_bytes(spec_, most);
  }

  // Keys [begin, kv_len). k8_and_scales have room for `pitch` keys a head.
  void quantize(uintptr_t k, const std::array<uintptr_t, 2>& k8_and_scales, int64_t pitch, int64_t begin,
                uintptr_t stream) const {
    const gpu::DeviceScope scope(device_);
    gpu::kascade::quantize_keys(spec_, dtype_,
                                {.k = at(k),
                                 .k8 = at<int8_t>(k8_and_scales[0]),
                                 .k8_scales = at<float>(k8_and_scales[1]),
                                 .pitch = pitch,
                                 .begin = begin,
                                 .stream = at<CUstream_st>(stream)});
  }

  // normalizers, v_and_out, k8_and_scales, starts, pages: 0 where none are given.
  void find(uintptr_t q, uintptr_t k, const std::array<uintptr_t, 2>& k8_and_scales, int64_t pitch,
            uintptr_t normalizers, uintptr_t starts, uintptr_t counts, uintptr_t keys, int64_t most,
            uintptr_t workspace, int64_t workspace_bytes, uintptr_t stream,
            const std::array<uintptr_t, 2>& v_and_out, const std::array<uintptr_t, 7>& pages) const {
    const gpu::DeviceScope scope(device_);
    gpu::kascade::find_keys(spec_, dtype_,
                            {.q = at(q),
                             .k = at(k),
                             .counts = at<const int32_t>(counts),
                             .keys = at<int32_t>(keys),
                             .most = most,
                             .starts = at<const int32_t>(starts),
                             .v = at(v_and_out[0]),
                             .out = at(v_and_out[1]),
                             .pages = pages_of(pages),
                             .k8 = at<const int8_t>(k8_and_scales[0]),
                             .k8_scales = at<const float>(k8_and_scales[1]),
                             .k8_pitch = pitch,
                             .normalizers = at<const float>(normalizers),
                             .workspace = at(workspace),
                             .workspace_bytes = workspace_bytes,
                             .stream = at<CUstream_st>(stream)});
  }

  void attend(const std::array<uintptr_t, 4>& q_k_v_out, uintptr_t counts, uintptr_t keys, int64_t most,
              uintptr_t heads, uintptr_t workspace, uintptr_t stream,
              const std::array<uintptr_t, 7>& pages) const {
    const gpu::DeviceScope scope(device_);
    gpu::kascade::attend_to_keys(spec_, dtype_,
                                 {.q = at(q_k_v_out[0]),
                                  .k = at(q_k_v_out[1]),
                                  .v = at(q_k_v_out[2]),
                                  .out = at(q_k_v_out[3]),
                                  .counts = at<const int32_t>(counts),
                                  .keys = at<const int32_t>(keys),
                                  .most = most,
                                  .heads = at<const int32_t>(heads),
                                  .pages = pages_of(pages),
                                  .workspace = at(workspace),
                                  .stream = at<CUstream_st>(stream)});
  }

 private:
  AttentionSpec spec_;
  Dtype dtype_;
  int device_;
};

void bind_device_kascade(nb::module_& module) {
  nb::class_<DeviceKascade>(module, "DeviceKascade")
      .def(nb::init<const std::array<int64_t, 6>&, double, std::string_view, int>(), nb::arg("sizes"),
           nb::arg("scale"), nb::arg("dtype"), nb::arg("device"))
      .def("not_taken", &DeviceKascade::not_taken, nb::arg("tile"),
           "What keeps the kernels from it, in words; empty where nothing does.")
      .def("find_bytes", &DeviceKascade::find_bytes)
      .def("reuse_bytes", &DeviceKascade::reuse_bytes)
      .def("quantize", &DeviceKascade::quantize)
      .def("find", &DeviceKascade::find)
      .def("attend", &DeviceKascade::attend);
}

#else

void bind_device_kascade(nb::module_&) {}

#endif

}  // namespace

void bind_kascade(nb::module_& module) {
  bind_device_kascade(module);
  module.attr("KASCADE_STEP_ROWS") = gpu::kascade::kMostStepRows;
  module.attr("KASCADE_KEY_GROUP") = gpu::kascade::kKeyGroup;
  module.def(
      "kascade_keys_of_tiles",
      [](double budget, int64_t tile, int64_t least_keys, int64_t q_len, int64_t kv_len) {
        return KascadeBudget{tile, budget, least_keys}.keys_of_tiles(q_len, kv_len);
      },
      nb::arg("budget"), nb::arg("tile"), nb::arg("least_keys"), nb::arg("q_len"), nb::arg("kv_len"),
      "How many keys each tile of q_len queries keeps over kv_len keys, under a causal mask.");
  module.def(
      "kascade_keys",
      [](double budget, int64_t tile, int64_t least_keys, int64_t visible, int64_t own) {
        return KascadeBudget{tile, budget, least_keys}.keys(visible, own);
      },
      nb::arg("budget"), nb::arg("tile"), nb::arg("least_keys"), nb::arg("visible"), nb::arg("own"),
      "How many keys a tile keeps whose last query sees `visible`, `own` of them in the tile.");
  nb::class_<KascadePlan>(module, "KascadePlan",
                          "Which layers of a model find keys (anchors), and whose keys each other layer "
                          "reuses. Read by splash_attention.kascade.read_plan.")
      .def_static("parse", &parse_kascade_plan, nb::arg("text"), nb::arg("file"))
      .def_static("read", &read_kascade_plan, nb::arg("path"))
      .def("to_toml", &to_toml)
      .def_ro("model", &KascadePlan::model)
      .def_ro("made_by", &KascadePlan::made_by)
      .def_ro("q_heads", &KascadePlan::q_heads)
      .def_ro("kv_heads", &KascadePlan::kv_heads)
      .def_ro("alpha", &KascadePlan::alpha)
      .def_prop_ro("tile", [](const KascadePlan& p) { return p.budget.tile; })
      .def_prop_ro("budget", [](const KascadePlan& p) { return p.budget.share; })
      .def_prop_ro("least_keys", [](const KascadePlan& p) { return p.budget.least_keys; })
      .def_prop_ro("normalizer", [](const KascadePlan& p) { return to_string(p.normalizer); })
      .def_prop_ro("over_tiles", [](const KascadePlan& p) { return to_string(p.over_tiles); })
      .def_prop_ro("anchors", &KascadePlan::anchors, "the anchors' numbers, rising")
      .def_prop_ro("anchor_of", of_layers(&KascadeLayer::anchor), "of each layer, whose keys it uses")
      .def_prop_ro("heads", of_layers(&KascadeLayer::heads),
                   "of each layer and key head, the anchor's key head")
      .def_prop_ro("importance", of_layers(&KascadeLayer::importance))
      .def_prop_ro("similarity", of_layers(&KascadeLayer::similarity))
      .def_prop_ro("identities", &KascadePlan::identities)
      .def("__eq__", [](const KascadePlan& a, const KascadePlan& b) { return a == b; });
  nb::class_<LayerSimilarity>(module, "KascadeSimilarity")
      .def("__init__", &make_similarity, nb::arg("layers"), nb::arg("q_heads"), nb::arg("kv_heads"),
           nb::arg("budget"), nb::arg("tile"), nb::arg("least_keys"), nb::arg("normalizer"), nb::arg("alpha"),
           nb::arg("tiles"))
      .def("add_layer", &add_layer, nb::arg("q").noconvert(), nb::arg("k").noconvert(), nb::arg("scale"))
      .def("result", &result, nb::arg("over_tiles"))
      .def("plan", &plan, nb::arg("importance"), nb::arg("anchors"), nb::arg("over_tiles"), nb::arg("model"),
           nb::arg("made_by"))
      .def_prop_ro("texts", &LayerSimilarity::texts);
}

}  // namespace splash::python
