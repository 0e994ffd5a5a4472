// A plan of Kascade as TOML.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/kascade_plan.h"
#include "core/text.h"
#include "core/text_file.h"
#include "core/toml_table.h"

namespace splash {
namespace {

constexpr const char* kPlanSchema = "splash kascade plan 1";

// A basic string of TOML, on one line.
std::string toml_string(const std::string& text) {
  std::string quoted = "\"";
  for (const char c : one_line(to_utf8(text))) {
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += c;
  }
  return quoted + "\"";
}

// Shortest text that reads back as the same number. TOML wants a point or an exponent.
std::string toml_number(double value) {
  std::string text = fmt::format("{}", value);
  return text.find_first_of(".e") == std::string::npos ? text + ".0" : text;
}

double required_number(TomlTable& table, const std::string& key, const std::string& what) {
  const auto value = table.number(key);
  if (!value) table.fail(table.raw(), fmt::format("{} lacks '{}', a number", what, key));
  return *value;
}

int64_t integer_of(const TomlTable& table, const toml::node& node, const std::string& key) {
  const auto value = node.value_exact<int64_t>();
  if (!value) table.fail(node, fmt::format("'{}' must hold whole numbers", key));
  return *value;
}

int64_t required_integer(TomlTable& table, const std::string& key, const std::string& what) {
  const toml::node* node = table.find(key);
  if (node == nullptr) table.fail(table.raw(), fmt::format("{} lacks '{}', a whole number", what, key));
  return integer_of(table, *node, key);
}

std::vector<int64_t> required_integers(TomlTable& table, const std::string& key, const std::string& what) {
  const toml::node* node = table.find(key);
  if (node == nullptr || !node->is_array()) {
    table.fail(node == nullptr ? static_cast<const toml::node&>(table.raw()) : *node,
               fmt::format("{} needs '{}', a list of whole numbers", what, key));
  }
  std::vector<int64_t> values;
  for (const toml::node& one : *node->as_array()) values.push_back(integer_of(table, one, key));
  return values;
}

KascadeLayer layer_of(const toml::table& raw, const std::string& file) {
  const std::string what = "[[layer]]";
  TomlTable table(raw, file, what);
  KascadeLayer layer;
  layer.anchor = required_integer(table, "anchor", what);
  layer.heads = required_integers(table, "heads", what);
  layer.importance = required_number(table, "importance", what);
  layer.similarity = required_number(table, "similarity", what);
  table.finish();
  return layer;
}

}  // namespace

std::string to_toml(const KascadePlan& plan) {
  plan.validate();
  std::string text = fmt::format(
      "# A plan of Kascade (arXiv 2512.16391): the layers of a model that find keys (anchors), and whose "
      "keys\n"
      "# the others reuse. heads: for each key head, the anchor's key head whose keys it takes.\n"
      "schema = \"{}\"\nmodel = {}\nmade_by = {}\nq_heads = {}\nkv_heads = {}\ntile = {}\nbudget = {}\n"
      "least_keys = {}\nnormalizer = \"{}\"\nalpha = {}\nover_tiles = \"{}\"\nanchors = [{}]\n",
      kPlanSchema, toml_string(plan.model), toml_string(plan.made_by), plan.q_heads, plan.kv_heads,
      plan.budget.tile, toml_number(plan.budget.share), plan.budget.least_keys, to_string(plan.normalizer),
      toml_number(plan.alpha), to_string(plan.over_tiles), fmt::join(plan.anchors(), ", "));
  for (size_t number = 0; number < plan.layers.size(); ++number) {
    const KascadeLayer& layer = plan.layers[number];
    text += fmt::format("\n[[layer]] # {}\nanchor = {}\nheads = [{}]\nimportance = {}\nsimilarity = {}\n",
                        number, layer.anchor, fmt::join(layer.heads, ", "), toml_number(layer.importance),
                        toml_number(layer.similarity));
  }
  return text;
}

KascadePlan parse_kascade_plan(const std::string& text, const std::string& file) {
  const toml::table parsed = parse_toml(text, file);
  const std::string what = "the plan";
  TomlTable table(parsed, file, what);
  if (const auto schema = table.text("schema"); schema != kPlanSchema)
    table.fail(parsed, fmt::format("is no plan of Kascade; its schema must be \"{}\"", kPlanSchema));
  KascadePlan plan;
  plan.model = table.text("model").value_or("");
  plan.made_by = table.text("made_by").value_or("");
  plan.q_heads = required_integer(table, "q_heads", what);
  plan.kv_heads = required_integer(table, "kv_heads", what);
  plan.budget = {.tile = required_integer(table, "tile", what),
                 .share = required_number(table, "budget", what),
                 .least_keys = required_integer(table, "least_keys", what)};
  plan.alpha = required_number(table, "alpha", what);
  const std::string normalizer = table.required_text("normalizer");
  const std::string over_tiles = table.required_text("over_tiles");
  const std::vector<int64_t> anchors = required_integers(table, "anchors", what);
  for (const toml::table* layer : table.tables("layer")) plan.layers.push_back(layer_of(*layer, file));
  table.finish();
  try {
    plan.normalizer = normalizer_from_string(normalizer);
    plan.over_tiles = over_tiles_from_string(over_tiles);
    plan.validate();
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(fmt::format("{}: {}", file, error.what()));
  }
  if (anchors != plan.anchors()) {
    table.fail(*table.find("anchors"),
               fmt::format("anchors are [{}], and by their layers [{}]", fmt::join(anchors, ", "),
                           fmt::join(plan.anchors(), ", ")));
  }
  return plan;
}

KascadePlan read_kascade_plan(const std::string& path) {
  return parse_kascade_plan(read_text_file("plan", path, kMostTomlBytes), path);
}

}  // namespace splash
