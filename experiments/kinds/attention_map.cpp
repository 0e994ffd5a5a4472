// One head's probabilities under softmax, entmax and K_KEEP, as arrays to look at.

#include <algorithm>

#include <fmt/format.h>

#include "core/error.h"
#include "experiments/kinds/support/reference.h"

namespace splash::experiments {
namespace {

constexpr double kAnyAlpha = 1.5;  // softmax ignores it, but the options need an alpha

class AttentionMap : public HeadKind {
 public:
  std::string name() const override { return "attention-map"; }
  std::string summary() const override {
    return "the probabilities of one captured head under softmax, entmax and K_KEEP";
  }

  std::vector<ParameterInfo> parameters() const override {
    using enum ParameterType;
    auto list = input_parameters();
    list.push_back({"alpha", number, 1.5, "1", "entmax's alpha", {}});
    list.push_back({"k_keep", integer, int64_t{8}, "1", "keys kept a row in the K_KEEP map", {}});
    list.push_back({"tokens", integer, int64_t{96}, "1", "first queries and keys shown", {}});
    return list;
  }

  std::vector<report::ColumnInfo> columns() const override {
    std::vector<report::ColumnInfo> list;
    for (const std::string map : {"softmax", "entmax", "k_keep"}) {
      list.push_back({.name = "support_" + map,
                      .units = "1",
                      .long_name = fmt::format("keys with p > 0 under {}, mean over all rows", map),
                      .formula = "sum of supports / rows"});
      list.push_back(
          {.name = "shown_" + map,
           .units = "1",
           .long_name = fmt::format("probability on the shown keys under {}, mean over the shown rows", map),
           .formula = "sum of the attachment / shown rows"});
    }
    return list;
  }

  void check(const Parameters& p) const override {
    HeadKind::check(p);
    Normalizer{NormalizerKind::entmax, {get_number(p, "alpha")}}.validate({});
    Selection{.k_keep = get_integer(p, "k_keep")}.validate({});
    if (get_integer(p, "tokens") < 1) throw InvalidArgument("tokens must be at least 1");
    if (!is_of_file(p)) return;
    const AttentionShape& shape = open_tensor_file(get_text(p, "input")).call(get_integer(p, "call")).shape;
    if (shape.q_len != shape.kv_len)
      throw InvalidArgument(fmt::format(
          "attention-map shows calls of as many queries as keys; call {} of {} has {} queries and {} keys",
          get_integer(p, "call"), get_text(p, "input"), shape.q_len, shape.kv_len));
  }

  Parameters used(const Parameters& p) const override {
    Parameters kept = HeadKind::used(p);
    kept["tokens"] = std::min(get_integer(p, "tokens"), get_integer(kept, "length"));
    return kept;
  }

  CaseResult evaluate(const Parameters& p) const override {
    const auto inputs = load_inputs(p);
    AttentionSpec spec = input_spec(p, *inputs);
    const double alpha = get_number(p, "alpha");
    CaseResult result;
    spec.normalizer = {NormalizerKind::softmax, {}};
    add_map(p, "softmax", "exp(s) / sum exp(s)", spec, *inputs, kAnyAlpha, result);
    spec.normalizer = {NormalizerKind::entmax, {alpha}};
    add_map(p, "entmax", "[(alpha-1)s - tau]_+^(1/(alpha-1))", spec, *inputs, alpha, result);
    spec.selection = {.kind = SelectionKind::top_k_row, .k_keep = get_integer(p, "k_keep")};
    add_map(p, "k_keep", "entmax over the k_keep largest scores of the row", spec, *inputs, alpha, result);
    return result;
  }

 private:
  // Adds the window of the first tokens. Rows are normalised over all keys, so a shown row may sum to less
  // than 1.
  static void add_map(const Parameters& p, const std::string& name, const std::string& formula,
                      const AttentionSpec& spec, const AttentionInputs<double>& inputs, double alpha,
                      CaseResult& result) {
    const auto forward =
        cpu_ref::attention_forward<double>(spec, inputs.q, inputs.k, inputs.v, exact_options(alpha));
    const int64_t shown = std::min(get_integer(p, "tokens"), spec.shape.q_len);
    std::vector<double> window(shown * shown);
    double mass = 0, support = 0;
    for (int64_t r = 0; r < spec.shape.rows(); ++r) {
      support += static_cast<double>(forward.support[r]);
      if (r >= shown) continue;
      const auto& sparse = *forward.probabilities;
      for (int64_t i = sparse.row_offsets[r]; i < sparse.row_offsets[r + 1] && sparse.columns[i] < shown;
           ++i) {
        window[r * shown + sparse.columns[i]] = sparse.values[i];
        mass += sparse.values[i];
      }
    }
    result.numbers["support_" + name] = support / static_cast<double>(spec.shape.rows());
    result.numbers["shown_" + name] = mass / static_cast<double>(shown);

    report::Attachment map;
    map.name = name;
    map.units = "1";
    map.long_name = fmt::format(
        "attention probabilities under {}, first {} queries and keys; normalised over all keys", name, shown);
    map.formula = formula;
    map.dimensions = {"query", "key"};
    map.extents = {shown, shown};
    map.numbers = std::move(window);
    if (get_text(p, "input") == "minilm") {
      auto tokens = load_tokens(get_text(p, "text"));
      tokens.resize(shown);
      map.labels = {{"query", tokens}, {"key", tokens}};
    }
    result.attachments.push_back(std::move(map));
  }
};

const AttentionMap kAttentionMap;
const KindRegistration kAttentionMapRegistration(kAttentionMap);

}  // namespace
}  // namespace splash::experiments
