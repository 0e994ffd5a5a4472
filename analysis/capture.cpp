#include "analysis/capture.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "core/checked.h"
#include "core/error.h"
#include "report/hdf5/apart.h"
#include "report/hdf5/file.h"
#include "report/seal.h"

namespace splash::analysis {
namespace {

constexpr size_t kCapturedDimensions = 5;

[[noreturn]] void refuse_capture(const std::string& path, const std::string& what) {
  throw ReportError(fmt::format("{}: {}", path, what));
}

std::string call_group(int64_t call) {
  return fmt::format("call-{}", call);
}

report::hdf5::Extents captured_tensor_extents(const std::string& path, const report::hdf5::Dataset& tensor) {
  report::hdf5::Extents extents = tensor.extents();
  if (extents.size() == kCapturedDimensions) return extents;
  refuse_capture(path, fmt::format("{} has {} dimensions; a capture's tensors have 5: [layer, batch, heads, "
                                   "length, head_dim]",
                                   tensor.path(), extents.size()));
}

std::vector<int64_t> layers_of(const std::string& path, const report::hdf5::Group& root) {
  const report::hdf5::Dataset held = root.dataset("layer");
  if (held.extents().size() != 1 || held.extents()[0] < 1)
    refuse_capture(path, fmt::format("/layer has extents [{}]; it must list one layer or more",
                                     fmt::join(held.extents(), ", ")));
  std::vector<int64_t> layers = held.integers();
  if (std::set<int64_t>(layers.begin(), layers.end()).size() != layers.size())
    refuse_capture(path, "/layer names a layer twice");
  return layers;
}

std::vector<double> scales_of(const std::string& path, const report::hdf5::Group& group, size_t layers) {
  const report::hdf5::Dataset held = group.dataset("scale");
  std::vector<double> scale = held.doubles();
  if (held.extents().size() != 1 || scale.size() != layers)
    refuse_capture(path, fmt::format("{} holds {} numbers; there must be one for each of the {} layers",
                                     held.path(), scale.size(), layers));
  for (const double number : scale) {
    if (!std::isfinite(number) || number == 0)
      refuse_capture(path, fmt::format("{} holds {}; a scale must be finite and not 0", held.path(), number));
  }
  return scale;
}

std::vector<double> importance_of(const std::string& path, const report::hdf5::Group& group, size_t layers) {
  if (!group.has("importance")) return {};
  const report::hdf5::Dataset held = group.dataset("importance");
  std::vector<double> importance = held.doubles();
  if (held.extents().size() != 1 || importance.size() != layers)
    refuse_capture(path, fmt::format("{} holds {} numbers; there must be one for each of the {} layers",
                                     held.path(), importance.size(), layers));
  for (const double number : importance) {
    if (!(std::isfinite(number) && number >= 0))
      refuse_capture(
          path, fmt::format("{} holds {}; an importance must be finite and at least 0", held.path(), number));
  }
  return importance;
}

CapturedCall call_of(const std::string& path, const report::hdf5::Group& group, size_t layers) {
  const report::hdf5::Dataset queries = group.dataset("q"), keys = group.dataset("k"),
                              values = group.dataset("v");
  const report::hdf5::Extents q = captured_tensor_extents(path, queries),
                              k = captured_tensor_extents(path, keys);
  CapturedCall call;
  call.shape = {
      .batch = q[1], .q_heads = q[2], .kv_heads = k[2], .q_len = q[3], .kv_len = k[3], .head_dim = q[4]};
  const report::hdf5::Extents needed{q[0], q[1], k[2], k[3], q[4]};
  for (const report::hdf5::Dataset* tensor : {&keys, &values}) {
    if (const report::hdf5::Extents extents = captured_tensor_extents(path, *tensor); extents != needed)
      refuse_capture(path, fmt::format("{} has extents [{}]; with these q and k they must be [{}]",
                                       tensor->path(), fmt::join(extents, ", "), fmt::join(needed, ", ")));
  }
  if (q[0] != static_cast<int64_t>(layers))
    refuse_capture(path,
                   fmt::format("{} holds {} layers, and /layer lists {}", queries.path(), q[0], layers));
  try {
    call.shape.validate();
  } catch (const InvalidArgument& error) {
    refuse_capture(path, fmt::format("{}: {}", group.path(), error.what()));
  }
  call.scale = scales_of(path, group, layers);
  call.importance = importance_of(path, group, layers);
  call.causal = group.integer_attribute("causal") != 0;
  return call;
}

Capture capture_of(const std::string& path) {
  const report::hdf5::Group root = report::hdf5::File::open(path).root();
  if (root.text_attribute("schema", "") != kCaptureSchema)
    refuse_capture(path, fmt::format("is no capture, its attribute schema is not \"{}\"", kCaptureSchema));
  Capture capture{layers_of(path, root), {}};
  for (int64_t call = 0; root.is_group(call_group(call)); ++call)
    capture.calls.push_back(call_of(path, root.group(call_group(call)), capture.layers.size()));
  if (capture.calls.empty()) refuse_capture(path, "holds no call of the model, no group /call-0");
  return capture;
}

void require_finite_values(const std::string& path, const report::hdf5::Dataset& dataset,
                           const std::vector<float>& values) {
  const auto odd = std::ranges::find_if(values, [](float value) { return !std::isfinite(value); });
  if (odd == values.end()) return;
  refuse_capture(path,
                 fmt::format("{} holds {}; every value must be finite in float32", dataset.path(), *odd));
}

Tensor<float> captured_tensor_of(const std::string& path, int64_t call, const std::string& name,
                                 const report::hdf5::Extents& leading) {
  const report::hdf5::Dataset dataset =
      report::hdf5::File::open(path).root().dataset(call_group(call) + "/" + name);
  report::hdf5::Extents extents = captured_tensor_extents(path, dataset);
  std::fill_n(extents.begin(), std::min(leading.size(), extents.size()), int64_t{1});
  const std::vector<float> values = dataset.floats(leading);
  require_finite_values(path, dataset, values);
  const auto batch = checked_product({extents[0], extents[1]});
  if (!batch) refuse_capture(path, fmt::format("{} has too many layers", dataset.path()));
  Tensor<float> tensor(*batch, extents[2], extents[3], extents[4]);
  std::ranges::copy(values, tensor.data());
  return tensor;
}

}  // namespace

Capture read_capture(const std::string& path) {
  if (report::check_seal(path) == report::Seal::broken)
    refuse_capture(path, "is damaged, its checksum does not match its content");
  return report::hdf5::read_apart_first(path, [&] { return capture_of(path); });
}

Tensor<float> read_captured_tensor(const std::string& path, int64_t call, const std::string& name,
                                   const report::hdf5::Extents& leading) {
  return report::hdf5::read_apart_first(path, [&] { return captured_tensor_of(path, call, name, leading); });
}

}  // namespace splash::analysis
