#include "experiments/cli/kascade_report.h"

#include <functional>

#include <fmt/format.h>

#include "build_info.h"
#include "cpu_ref/kascade/planner.h"
#include "experiments/cli/command.h"
#include "experiments/runner/provenance.h"

namespace splash::cli {
namespace {

using report::Column;

std::string case_of(int64_t layer) {
  return fmt::format("layer-{}", layer);
}

Column text_column(const KascadePlan& plan, const char* name, const char* long_name, const std::string& value,
                   bool is_parameter) {
  return {.info = {.name = name,
                   .units = "text",
                   .long_name = long_name,
                   .formula = "as given",
                   .is_text = true,
                   .is_parameter = is_parameter},
          .texts = std::vector<std::string>(plan.layers.size(), value)};
}

Column number_column(const KascadePlan& plan, const char* name, const char* long_name, const char* formula,
                     const std::function<double(const KascadeLayer&)>& value, bool is_parameter = false) {
  Column column{.info = {.name = name,
                         .units = "1",
                         .long_name = long_name,
                         .formula = formula,
                         .is_parameter = is_parameter}};
  for (const KascadeLayer& layer : plan.layers) column.numbers.push_back(value(layer));
  return column;
}

Column parameter_column(const KascadePlan& plan, const char* name, const char* long_name, double value) {
  return number_column(
      plan, name, long_name, "as given", [value](const KascadeLayer&) { return value; }, true);
}

std::vector<Column> results_of(const KascadePlan& plan, const cpu_ref::LayerTable& table) {
  Column case_id = text_column(plan, "case_id", "name of the case", "", true);
  Column layer = parameter_column(plan, "layer", "layer of the model, from 0", 0);
  Column own =
      number_column(plan, "own_similarity", "share of the layer's attention on keys of its own choice",
                    "similarity if the layer were an anchor", [](const KascadeLayer&) { return 0.0; });
  Column head{.info = {.name = "anchor_head",
                       .units = "1",
                       .long_name = "key head of the anchor whose keys this key head takes",
                       .formula = "the most similar of the anchor's",
                       .dimension = "kv_head"},
              .width = plan.kv_heads};
  for (size_t at = 0; at < plan.layers.size(); ++at) {
    const auto number = static_cast<int64_t>(at);
    case_id.texts[at] = case_of(number);
    layer.numbers[at] = static_cast<double>(number);
    own.numbers[at] = table.of(number, number);
    head.numbers.insert(head.numbers.end(), plan.layers[at].heads.begin(), plan.layers[at].heads.end());
  }
  return {text_column(plan, "experiment", "name of the experiment", "kascade-plan", true),
          case_id,
          text_column(plan, "model", "the model that the plan is of", plan.model, true),
          layer,
          parameter_column(plan, "anchors", "number of anchors", static_cast<double>(plan.anchors().size())),
          parameter_column(plan, "budget", "share of the visible keys that a tile keeps", plan.budget.share),
          parameter_column(plan, "least_keys", "keys that a tile keeps at least",
                           static_cast<double>(plan.budget.least_keys)),
          parameter_column(plan, "tile", "queries per tile", static_cast<double>(plan.budget.tile)),
          text_column(
              plan, "normalizer", "what turns scores into probabilities",
              plan.normalizer == NormalizerKind::softmax ? "softmax" : fmt::format("entmax {}", plan.alpha),
              true),
          text_column(plan, "over_tiles", "how the tiles of a text become one number",
                      std::string(to_string(plan.over_tiles)), true),
          number_column(plan, "anchor", "layer whose keys this one uses", "by dynamic programming",
                        [](const KascadeLayer& one) { return static_cast<double>(one.anchor); }),
          number_column(plan, "importance", "how far attention turns the residual stream",
                        "1 - cosine before and after, mean over tokens",
                        [](const KascadeLayer& one) { return one.importance; }),
          number_column(plan, "similarity", "share of the layer's attention on the keys that it uses",
                        "mean over key heads", [](const KascadeLayer& one) { return one.similarity; }),
          own,
          head};
}

}  // namespace

report::Report kascade_report(const KascadePlan& plan, const cpu_ref::LayerSimilarity& similarity,
                              const std::string& inputs) {
  const auto layers = static_cast<int64_t>(plan.layers.size());
  std::vector<double> pairs = similarity.result(plan.over_tiles);
  cpu_ref::LayerTable table = cpu_ref::layer_table(pairs, layers, plan.kv_heads);
  report::Report made;
  made.title = fmt::format("Kascade: {} anchors of {} layers", plan.anchors().size(), layers);
  made.run_id = experiments::new_run_id();
  made.provenance.commit = build::git_commit();
  made.provenance.dirty = build::git_state() != "clean";
  made.provenance.argv = command_line();
  made.provenance.cpu = experiments::cpu_model();
  made.provenance.toolchain = experiments::toolchain();
  made.provenance.input_hashes = inputs;
  made.provenance.started = made.provenance.finished = experiments::utc_now();
  made.results = results_of(plan, table);
  made.attachments = {{.case_id = case_of(0),
                       .name = "similarity",
                       .units = "1",
                       .long_name = "share of a later layer's attention on the keys of a layer's key head",
                       .formula = "probabilities on the set over all probabilities, over tiles and texts; 0 "
                                  "where the layer is not later",
                       .dimensions = {"choosing_layer", "choosing_head", "using_layer", "using_head"},
                       .extents = {layers, plan.kv_heads, layers, plan.kv_heads},
                       .numbers = std::move(pairs)},
                      {.case_id = case_of(0),
                       .name = "layer_similarity",
                       .units = "1",
                       .long_name = "how well a layer's keys serve a later layer",
                       .formula = "mean over key heads of the best of the choosing layer's key heads",
                       .dimensions = {"choosing_layer", "using_layer"},
                       .extents = {layers, layers},
                       .numbers = std::move(table.serves)}};
  return made;
}

}  // namespace splash::cli
