#pragma once
// A small capture for the tests. Its tensors are made up, and every element differs from the others.

#include <cstddef>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "analysis/capture.h"
#include "core/error.h"
#include "report/hdf5/file.h"

namespace splash::analysis::testing {

struct ExampleCapture {
  std::vector<int64_t> layers{3, 7};
  AttentionShape shape{.batch = 2, .q_heads = 4, .kv_heads = 2, .q_len = 12, .kv_len = 12, .head_dim = 4};
  std::vector<double> scale{0.5, 0.5};
  bool causal = true;
  int64_t calls = 1;
  int64_t full_call = -1;           // a call that is not causal, whatever `causal` says
  std::string method{};             // the root's attribute; empty: none
  std::vector<int64_t> kv_heads{};  // of the model, that are held; empty: not told
};

// The element at `place` of a call's tensor: different for each place, exact in float32, in [-2, 2].
inline double example_value(const std::string& tensor, int64_t call, const report::hdf5::Extents& place) {
  uint64_t mixed = static_cast<uint64_t>(tensor[0]) * 1000003u + static_cast<uint64_t>(call);
  for (const int64_t index : place) mixed = (mixed ^ static_cast<uint64_t>(index + 1)) * 0x9e3779b97f4a7c15u;
  return static_cast<double>(static_cast<float>(static_cast<double>(mixed >> 40) / (1 << 22) - 2));
}

// `change` may add to the file or its first call before it is written.
inline void write_capture(const std::string& path, const ExampleCapture& example,
                          const std::function<void(report::hdf5::Group& call)>& change = {}) {
  const report::hdf5::File file = report::hdf5::File::in_memory("capture");
  report::hdf5::Group root = file.root();
  root.set_text("schema", kCaptureSchema);
  const auto layers = static_cast<int64_t>(example.layers.size());
  root.create_integers("layer", {layers}, example.layers);
  if (!example.method.empty()) root.set_text("method", example.method);
  if (!example.kv_heads.empty())
    root.create_integers("kv_head", {static_cast<int64_t>(example.kv_heads.size())}, example.kv_heads);
  for (int64_t call = 0; call < example.calls; ++call) {
    report::hdf5::Group group = root.create_group("call-" + std::to_string(call));
    for (const std::string name : {"q", "k", "v"}) {
      if (group.has(name)) continue;
      const bool queries = name == "q";
      const AttentionShape& s = example.shape;
      const report::hdf5::Extents extents{layers, s.batch, queries ? s.q_heads : s.kv_heads,
                                          queries ? s.q_len : s.kv_len, s.head_dim};
      std::vector<double> values;
      report::hdf5::Extents place(extents.size(), 0);
      for (int64_t i = 0; i < report::hdf5::element_count(extents); ++i) {
        int64_t rest = i;
        for (size_t axis = extents.size(); axis-- > 0; rest /= extents[axis])
          place[axis] = rest % extents[axis];
        values.push_back(example_value(name, call, place));
      }
      group.create_doubles(name, extents, values);
    }
    group.create_doubles("scale", {static_cast<int64_t>(example.scale.size())}, example.scale);
    group.set_integer("causal", example.causal && call != example.full_call ? 1 : 0);
    if (call == 0 && change) change(group);
  }
  const std::vector<std::byte> image = file.image();
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(image.data()), static_cast<std::streamsize>(image.size()));
}

}  // namespace splash::analysis::testing
