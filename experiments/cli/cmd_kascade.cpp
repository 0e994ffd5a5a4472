// splash kascade plan: chooses the anchors of a model, and whose keys the other layers reuse, from captures
// of its q and k.

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <optional>
#include <span>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "cpu_ref/kascade/planner.h"
#include "experiments/cli/command.h"
#include "experiments/cli/console.h"
#include "experiments/cli/kascade_report.h"
#include "experiments/kinds/support/tensor_file.h"
#include "experiments/runner/case_json.h"
#include "experiments/runner/narrate.h"
#include "report/atomic_file.h"
#include "report/io.h"

namespace splash::cli {
namespace {

using cpu_ref::LayerSimilarity;
using experiments::TensorFile;

constexpr const char* kKascadeExamples =
    "splash kascade plan text-1.h5 text-2.h5 --anchors 5 --out plan.toml\n"
    "splash kascade plan text.h5 --anchors 5 --budget 0.05 --report similarity.h5 --out plan.toml\n"
    "splash kascade plan text.h5 --anchors 3 --entmax 1.5 --over-tiles minimum --out plan.toml --json";
constexpr const char* kKascadeWhat =
    "Kascade (arXiv 2512.16391): chooses the layers of a model that find keys, and for each head of the "
    "others the\n"
    "head whose keys it reuses, from how much attention falls on another layer's keys. A capture holds q and "
    "k of every\n"
    "layer on one text or more: python -m splash_attention.language capture MODEL --importances.";

struct KascadeOptions {
  Words captures;
  std::string out, report, over_tiles = "mean", model;
  int64_t anchors = 0;
  cpu_ref::SimilarityOptions similarity{};
  std::optional<double> entmax_alpha;
  bool json = false;
};

void declare_kascade(CLI::App& app, KascadeOptions& o) {
  KascadeBudget& budget = o.similarity.budget;
  app.add_option("CAPTURE", o.captures, "files of captured q and k of all layers")->required();
  app.add_option("--anchors", o.anchors, "layers that find keys, layer 0 among them")->required();
  app.add_option("--budget", budget.share, "share of the visible keys that a tile keeps (0.1)");
  app.add_option("--least-keys", budget.least_keys, "keys that a tile keeps at least (128)");
  app.add_option("--tile", budget.tile, "queries that share keys (32)");
  app.add_option("--entmax", o.entmax_alpha, "the attention is entmax of this alpha (softmax)")
      ->type_name("ALPHA");
  app.add_option("--over-tiles", o.over_tiles, "mean or minimum: what a text's tiles count by (mean)");
  app.add_option("--tiles", o.similarity.tiles,
                 "tiles of each text that are looked at, evenly spread with the last (all)");
  app.add_option("--model", o.model, "a name for the plan (of the first capture)");
  app.add_option("-o,--out", o.out, "the plan, TOML")->required()->type_name("PATH");
  app.add_option("--report", o.report, "also write the similarities, as a report")->type_name("PATH");
  app.add_flag("--json", o.json, "one object in place of the table");
}

void require_whole_model(const TensorFile& file) {
  const std::vector<int64_t>& layers = file.capture.layers;
  for (size_t at = 0; at < layers.size(); ++at) {
    if (layers[at] != static_cast<int64_t>(at)) {
      throw InvalidArgument(fmt::format("{} holds the layers {}; a plan needs all of a model's, 0, 1, 2, ...",
                                        file.name, fmt::join(layers, ", ")));
    }
  }
  for (const analysis::CapturedCall& call : file.capture.calls) {
    if (!call.causal || call.shape.q_len != call.shape.kv_len) {
      throw InvalidArgument(fmt::format(
          "{} holds a call of {} queries and {} keys{}; a plan needs causal calls of as many queries as keys",
          file.name, call.shape.q_len, call.shape.kv_len, call.causal ? "" : ", not causal"));
    }
  }
}

// Adds one call of the model to the similarity, and its importances, if it has them, to `importance`.
void add_call(const TensorFile& file, size_t number, LayerSimilarity& similarity,
              std::vector<double>& importance) {
  const analysis::CapturedCall& call = file.capture.calls[number];
  for (size_t layer = 0; layer < file.capture.layers.size(); ++layer) {
    const auto read = [&](const char* name) {
      Tensor<float> all(call.shape.batch, name[0] == 'q' ? call.shape.q_heads : call.shape.kv_heads,
                        call.shape.q_len, call.shape.head_dim);
      for (int64_t batch = 0; batch < call.shape.batch; ++batch) {
        const Tensor<float> one = analysis::read_captured_tensor(file.hdf5, static_cast<int64_t>(number),
                                                                 name, {static_cast<int64_t>(layer), batch});
        std::copy_n(one.data(), one.size(), all.row(batch, 0, 0));
      }
      return all;
    };
    similarity.add_layer(read("q"), read("k"), call.scale[layer]);
    if (!call.importance.empty()) importance[layer] += call.importance[layer];
  }
}

struct Planned {
  KascadePlan plan;
  LayerSimilarity similarity;
  std::string inputs;  // names and hashes of the captures, one a line
};

Planned planned_from(KascadeOptions& o) {
  if (o.entmax_alpha) {
    o.similarity.normalizer = NormalizerKind::entmax;
    o.similarity.alpha = *o.entmax_alpha;
  }
  std::vector<const TensorFile*> files;
  for (const std::string& name : o.captures) {
    files.push_back(&experiments::open_tensor_file(name));
    require_whole_model(*files.back());
    if (files.back()->capture.layers.size() != files[0]->capture.layers.size()) {
      throw InvalidArgument(fmt::format("{} holds {} layers and {} {}; a plan is of one model",
                                        files[0]->name, files[0]->capture.layers.size(), files.back()->name,
                                        files.back()->capture.layers.size()));
    }
  }
  const AttentionShape& first = files[0]->capture.calls[0].shape;
  const size_t layers = files[0]->capture.layers.size();
  cpu_ref::require_anchors(o.anchors, static_cast<int64_t>(layers));
  const OverTiles over_tiles = over_tiles_from_string(o.over_tiles);
  LayerSimilarity similarity({static_cast<int64_t>(layers), first.q_heads, first.kv_heads}, o.similarity);
  std::vector<double> importance(layers);
  int64_t calls = 0, weighed = 0, longest = 0;
  std::string inputs;
  for (const TensorFile* file : files) {
    for (size_t call = 0; call < file->capture.calls.size(); ++call, ++calls) {
      experiments::narrate("{}, call {}", file->name, call);
      add_call(*file, call, similarity, importance);
      longest = std::max(longest, file->capture.calls[call].shape.kv_len);
      weighed += file->capture.calls[call].importance.empty() ? 0 : 1;
    }
    inputs += fmt::format("{} {}\n", std::filesystem::path(file->name).filename().string(), file->hash);
  }
  if (weighed != 0 && weighed != calls)
    throw InvalidArgument("some of the captures hold importances and some do not; capture all alike");
  if (weighed == 0) {
    experiments::narrate("the captures hold no importances (capture with --importances); all layers count 1");
    importance.assign(layers, 1);
  } else {
    for (double& one : importance) one /= static_cast<double>(weighed);
  }
  KascadePlan plan = plan_kascade(similarity, importance, o.anchors, over_tiles);
  plan.model = o.model.empty() ? std::filesystem::path(o.captures[0]).stem().string() : o.model;
  plan.made_by =
      fmt::format("{} text{} of {} tokens{}", similarity.texts(), similarity.texts() == 1 ? "" : "s", longest,
                  weighed == 0 ? ", all layers of importance 1" : "");
  return {std::move(plan), std::move(similarity), std::move(inputs)};
}

void print_plan(const KascadePlan& plan) {
  print(fmt::format("anchors {} of {} layers\n", fmt::join(plan.anchors(), ", "), plan.layers.size()));
  if (!std::isnan(plan.identities()))
    print(fmt::format("{:.0f} % of the reusing heads take their own number\n", 100 * plan.identities()));
  print("\n");
  TextTable table({"layer", "keys of", "heads", "similarity", "importance"});
  for (size_t layer = 0; layer < plan.layers.size(); ++layer) {
    const KascadeLayer& one = plan.layers[layer];
    const bool anchor = plan.is_anchor(static_cast<int64_t>(layer));
    table.add({{fmt::format("{}", layer), anchor ? Colour::bold : Colour::none},
               {anchor ? "its own" : fmt::format("{}", one.anchor)},
               {anchor ? "" : fmt::format("{}", fmt::join(one.heads, " "))},
               {fmt::format("{:.4f}", one.similarity)},
               {fmt::format("{:.4f}", one.importance)}});
  }
  table.print();
}

nlohmann::json plan_json(const KascadePlan& plan) {
  nlohmann::json layers = nlohmann::json::array();
  for (const KascadeLayer& one : plan.layers) {
    layers.push_back({{"anchor", one.anchor},
                      {"heads", one.heads},
                      {"importance", one.importance},
                      {"similarity", one.similarity}});
  }
  return {{"model", plan.model},
          {"anchors", plan.anchors()},
          {"identities", experiments::plain_number(plan.identities())},
          {"layers", layers}};
}

}  // namespace

int cmd_kascade(const Words& words) {
  CLI::App app;
  prepare(app, "kascade plan", kKascadeExamples, kKascadeWhat);
  KascadeOptions options;
  declare_kascade(app, options);
  const bool plans = !words.empty() && words[0] == "plan";
  parse(app, plans ? Words(words.begin() + 1, words.end()) : words);
  if (!plans) throw InvalidArgument("what is to be done comes first: splash kascade plan; see --help");
  report::prepare_place(options.out);
  if (!options.report.empty()) report::prepare_place(options.report);
  const Planned planned = planned_from(options);
  const std::string text = to_toml(planned.plan);
  report::write_file_atomically(options.out, std::as_bytes(std::span(text)));
  if (!options.report.empty())
    report::write_report(options.report, kascade_report(planned.plan, planned.similarity, planned.inputs));
  if (options.json) {
    print_json(plan_json(planned.plan));
  } else {
    print_plan(planned.plan);
  }
  experiments::narrate("written to {}", options.out);
  return kDone;
}

}  // namespace splash::cli
