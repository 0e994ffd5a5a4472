// Straight-through gradients of K_KEEP attention (source 004) against exact ones.

#include <cmath>

#include <fmt/format.h>

#include "analysis/error_metrics.h"
#include "core/error.h"
#include "core/random.h"
#include "cpu_ref/attention/backward.h"
#include "experiments/kinds/support/reference.h"

namespace splash::experiments {
namespace {

using cpu_ref::Gradients;

class Gradient : public HeadKind {
 public:
  std::string name() const override { return "gradient"; }
  std::string summary() const override {
    return "straight-through gradients of K_KEEP attention against exact ones";
  }

  std::vector<ParameterInfo> parameters() const override {
    using enum ParameterType;
    auto list = input_parameters();
    list.push_back({"alpha", number, 1.5, "1", "entmax's alpha", {}});
    list.push_back(
        {"scope", text, std::string("row"), "", "k_keep a row, or k_keep a key block", {"row", "block"}});
    list.push_back({"k_keep", integer, int64_t{8}, "1", "keys kept", {}});
    list.push_back({"block", integer, int64_t{64}, "1", "keys a block, for scope block", {}});
    list.push_back(
        {"dout_seed", integer, int64_t{7}, "1", "seed of the gradient of the output, N(0, 1)", {}});
    return list;
  }

  // "selected": against the exact gradient of the K_KEEP forward that was run. "full": against the gradient
  // of entmax over all keys.
  std::vector<report::ColumnInfo> columns() const override {
    std::vector<report::ColumnInfo> list;
    for (const std::string reference : {"selected", "full"}) {
      const char* what = reference == "selected" ? "of the same K_KEEP forward" : "of entmax over all keys";
      for (const std::string tensor : {"dq", "dk", "dv"}) {
        list.push_back(
            {.name = fmt::format("nmse_{}_vs_{}", tensor, reference),
             .units = "1",
             .long_name = fmt::format("straight-through {} against the exact gradient {}", tensor, what),
             .formula = "|g - ref|^2 / |ref|^2",
             .missing_reason = "the exact gradient is zero throughout, as where one key is kept"});
        list.push_back({.name = fmt::format("cosine_{}_vs_{}", tensor, reference),
                        .units = "1",
                        .long_name = fmt::format(
                            "direction of straight-through {} against the exact gradient {}", tensor, what),
                        .formula = "<g, ref> / (|g| |ref|)",
                        .missing_reason = "a gradient is zero throughout"});
      }
    }
    return list;
  }

  void check(const Parameters& p) const override {
    HeadKind::check(p);
    Selection{.k_keep = get_integer(p, "k_keep"), .block = get_integer(p, "block")}.validate({});
    Normalizer{NormalizerKind::entmax, {get_number(p, "alpha")}}.validate({});
  }

  Parameters used(const Parameters& p) const override {
    Parameters kept = HeadKind::used(p);
    if (get_text(p, "scope") != "block") kept.erase("block");
    return kept;
  }

  CaseResult evaluate(const Parameters& p) const override {
    const auto inputs = load_inputs(p);
    AttentionSpec full = input_spec(p, *inputs);
    full.normalizer = {NormalizerKind::entmax, {get_number(p, "alpha")}};
    AttentionSpec selected = full;
    selected.selection = {
        get_text(p, "scope") == "row" ? SelectionKind::top_k_row : SelectionKind::top_k_block,
        get_integer(p, "k_keep"), get_integer(p, "block")};
    Tensor<double> dout(1, 1, full.shape.q_len, full.shape.head_dim);
    const CounterRandom random(static_cast<uint64_t>(get_integer(p, "dout_seed")));
    for (int64_t i = 0; i < dout.size(); ++i) dout.data()[i] = random.normal(i);

    const auto backward = [&](const AttentionSpec& spec, bool straight_through) {
      return cpu_ref::attention_backward<double>(
          spec, inputs->q, inputs->k, inputs->v, dout,
          {.solver = exact_solver(get_number(p, "alpha")), .straight_through = straight_through});
    };
    const auto straight = backward(selected, true);
    CaseResult result;
    compare("selected", straight, backward(selected, false), result);
    compare("full", straight, backward(full, false), result);
    return result;
  }

 private:
  static void compare(const std::string& reference, const Gradients<double>& straight,
                      const Gradients<double>& exact, CaseResult& result) {
    const auto add = [&](const char* tensor, const Tensor<double>& g, const Tensor<double>& ref) {
      const double nmse = analysis::compare_arrays(values_of(g), values_of(ref)).nmse;
      const double direction = cosine(values_of(g), values_of(ref));
      if (std::isfinite(nmse)) result.numbers[fmt::format("nmse_{}_vs_{}", tensor, reference)] = nmse;
      if (std::isfinite(direction))
        result.numbers[fmt::format("cosine_{}_vs_{}", tensor, reference)] = direction;
    };
    add("dq", straight.dq, exact.dq);
    add("dk", straight.dk, exact.dk);
    add("dv", straight.dv, exact.dv);
  }
};

const Gradient kGradient;
const KindRegistration kGradientRegistration(kGradient);

}  // namespace
}  // namespace splash::experiments
