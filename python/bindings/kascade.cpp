// Kascade: plans, and the planner on q and k of a model's layers in host memory.

#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>
#include <string_view>

#include "core/kascade_plan.h"
#include "cpu_ref/kascade/planner.h"
#include "python/bindings/bindings.h"

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

}  // namespace

void bind_kascade(nb::module_& module) {
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
