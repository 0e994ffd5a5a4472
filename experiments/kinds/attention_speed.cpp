// Exact entmax attention on the CPU against PyTorch: time, memory and error in one run on the same inputs.

#include <algorithm>
#include <limits>
#include <omp.h>

#include <fmt/format.h>

#include "analysis/counts.h"
#include "analysis/error_metrics.h"
#include "core/workload.h"
#include "cpu_ref/attention/backward.h"
#include "cpu_ref/attention/forward.h"
#include "cpu_ref/attention/screened.h"
#include "cpu_ref/attention/trace.h"
#include "experiments/kinds/support/counted_cpu.h"
#include "experiments/kinds/support/inputs.h"
#include "experiments/kinds/support/memory.h"
#include "experiments/kinds/support/timing.h"
#include "experiments/kinds/support/torch_peers.h"
#include "experiments/runner/kind.h"

namespace splash::experiments {
namespace {

constexpr int64_t kCheckedRows = 256;
constexpr const char* kGaussianInputs = "gaussian";
constexpr const char* kOfLayer[] = {"layer", "call", "batch_entry", "scale"};  // parameters of inputs.h

struct Problem {
  AttentionSpec spec;
  AttentionInputs<float> in;
  Tensor<float> dout;
};

AttentionShape drawn_shape(const Parameters& p) {
  const int64_t n = get_integer(p, "n"), heads = get_integer(p, "heads");
  return {
      .q_heads = heads, .kv_heads = heads, .q_len = n, .kv_len = n, .head_dim = get_integer(p, "head_dim")};
}

bool is_softmax(const std::string& implementation) {
  return implementation.starts_with("torch-softmax");
}

Problem make_problem(const Parameters& p) {
  Problem problem;
  const Workload workload{.seed = static_cast<uint64_t>(get_integer(p, "seed")),
                          .query_variance = get_number(p, "query_variance")};
  problem.in = is_of_file(p) ? load_file_layer(p) : make_inputs<float>(workload, drawn_shape(p));
  problem.spec.shape = problem.in.shape();
  if (is_of_file(p)) problem.spec.scale = scale_of(p);
  problem.spec.mask.causal = get_flag(p, "causal");
  if (is_softmax(get_text(p, "implementation"))) problem.spec.normalizer.kind = NormalizerKind::softmax;
  problem.dout = make_inputs<float>({.seed = workload.seed + 1, .query_variance = 1}, problem.spec.shape).q;
  return problem;
}

// The last rows of every head. With causal masks aligned at the end, they are a problem of their own.
Tensor<double> last_rows(const Tensor<float>& t, int64_t rows) {
  Tensor<double> last(t.batch(), t.heads(), rows, t.dim());
  for (int64_t b = 0; b < t.batch(); ++b) {
    for (int64_t h = 0; h < t.heads(); ++h)
      last.matrix(b, h) = t.matrix(b, h).bottomRows(rows).cast<double>();
  }
  return last;
}

void add_errors(const Problem& problem, const Tensor<float>& out, CaseResult& result) {
  AttentionSpec spec = problem.spec;
  spec.shape.q_len = std::min(kCheckedRows, spec.shape.q_len);
  const auto reference = cpu_ref::attention_forward<double>(
      spec, last_rows(problem.in.q, spec.shape.q_len), problem.in.k.cast<double>(),
      problem.in.v.cast<double>(), {.solver = cpu_ref::Solver::newton});
  const Tensor<double> checked = last_rows(out, spec.shape.q_len);
  const auto errors =
      analysis::compare_arrays({checked.data(), static_cast<size_t>(checked.size())},
                               {reference.out.data(), static_cast<size_t>(reference.out.size())});
  double support = 0;
  for (const int64_t s : reference.support) support += static_cast<double>(s);
  result.numbers["mse"] = errors.mse;
  result.numbers["nmse"] = errors.nmse;
  result.numbers["max_error"] = errors.max_error;
  result.numbers["support_mean"] = support / static_cast<double>(reference.support.size());
}

struct Ran {
  Tensor<float> out;
  cpu_ref::SparseProbabilities<float> support;  // only if asked for
};

Ran run_ours(const std::string& implementation, bool backward, const Problem& x, bool keep_support = false) {
  const auto& [spec, in, dout] = x;
  if (implementation == "screened") {
    auto forward = cpu_ref::screened_forward(spec, in.q, in.k, in.v, backward || keep_support);
    if (backward) cpu_ref::screened_backward(spec, forward, in.q, in.k, in.v, dout);
    return {std::move(forward.out), std::move(forward.probabilities)};
  }
  auto forward = cpu_ref::attention_forward<float>(
      spec, in.q, in.k, in.v, {.solver = cpu_ref::Solver::newton, .keep_probabilities = keep_support});
  if (backward)
    cpu_ref::attention_backward<float>(spec, in.q, in.k, in.v, dout, {.solver = cpu_ref::Solver::newton});
  Ran ran{std::move(forward.out), {}};
  if (forward.probabilities) ran.support = std::move(*forward.probabilities);
  return ran;
}

// Counts the work by the implementation's trace on the support that the run found.
void add_counts_of(const std::string& implementation, bool backward, int64_t threads, const Problem& x,
                   const cpu_ref::SparseProbabilities<float>& support, CaseResult& result) {
  const auto pairs = static_cast<double>(visible_pairs(x.spec.shape, x.spec.mask)),
             head_dim = static_cast<double>(x.spec.shape.head_dim),
             entries = static_cast<double>(support.columns.size());
  const auto trace = implementation == "screened" ? cpu_ref::screened_trace : cpu_ref::reference_trace;
  add_cpu_counts(trace(x.spec, support, backward),
                 analysis::forward_flops(pairs, head_dim) + (backward ? 8 * head_dim * entries : 0), threads,
                 cpu_ref::caches(), result);
}

CaseResult measure_ours(const Parameters& p, const Problem& problem) {
  const std::string& implementation = get_text(p, "implementation");
  const bool backward = get_text(p, "pass") != "forward";
  omp_set_num_threads(static_cast<int>(get_integer(p, "threads")));
  CaseResult result;
  const Ran ran = run_ours(implementation, backward, problem, true);  // also the warm-up
  add_errors(problem, ran.out, result);
  result.numbers["peak_memory_bytes"] = peak_memory_of([&] { run_ours(implementation, backward, problem); });
  add_times(time_on_host([&] { run_ours(implementation, backward, problem); }, get_integer(p, "samples")),
            result);
  add_dense_equivalent(problem.spec, backward, result);
  add_counts_of(implementation, backward, get_integer(p, "threads"), problem, ran.support, result);
  result.texts["version"] = "this build";
  return result;
}

CaseResult measure_peer(const Parameters& p, const Problem& problem) {
  const PeerResult peer = run_torch_cpu_peer({.implementation = get_text(p, "implementation"),
                                              .backward = get_text(p, "pass") != "forward",
                                              .causal = get_flag(p, "causal"),
                                              .scale = problem.spec.score_scale(),
                                              .threads = get_integer(p, "threads"),
                                              .samples = get_integer(p, "samples")},
                                             problem.in, problem.dout);
  CaseResult result;
  if (!add_peer_run(peer, result)) return result;
  add_dense_equivalent(problem.spec, get_text(p, "pass") != "forward", result);
  add_errors(problem, peer.out, result);
  return result;
}

class AttentionSpeed : public Kind {
 public:
  std::string name() const override { return "attention-speed"; }
  std::string summary() const override {
    return "time, memory, error and counted work of exact entmax attention on the CPU, beside PyTorch's "
           "dense attention and entmax";
  }

  std::vector<ParameterInfo> parameters() const override {
    using enum ParameterType;
    std::vector<ParameterInfo> list{
        {"implementation",
         text,
         std::string("screened"),
         "",
         "what is timed",
         {"screened", "reference", "torch-softmax", "torch-softmax-unfused", "torch-entmax15",
          "torch-entmax15-k100", "torch-entmax-bisect"}},
        {"pass",
         text,
         std::string("forward"),
         "",
         "forward, or forward and backward",
         {"forward", "forward+backward"}},
        {"input",
         text,
         std::string(kGaussianInputs),
         "",
         "Gaussian q, k and v; or a layer of a decoder (smollm2), or of a file, with all its heads",
         {kGaussianInputs, "smollm2"},
         tensor_file_endings()},
        {"n", integer, int64_t{2048}, "1", "queries and keys; of a file, its keys, or the first tokens", {}},
        {"heads", integer, int64_t{8}, "1", "query heads", {}},
        {"kv_heads", integer, int64_t{8}, "1", "key heads of a file; Gaussian ones are as many as heads", {}},
        {"head_dim", integer, int64_t{64}, "1", "head dimension", {}},
        {"query_variance", number, 6.0, "1", "variance of the Gaussian queries", {}},
        {"causal", flag, false, "1", "whether later keys are hidden; of a file, as it says unless set", {}},
        {"threads", integer, int64_t{2}, "1", "threads", {}},
        {"samples", integer, int64_t{15}, "1", "timed repetitions, warm", {}},
        {"seed", integer, int64_t{1}, "1", "seed of the inputs; of a file, of the output's gradient", {}},
    };
    for (ParameterInfo& info : input_parameters(kOfLayer)) list.push_back(std::move(info));
    return list;
  }

  std::vector<report::ColumnInfo> columns() const override {
    const std::string missing =
        "the peer was not run: its packages are not installed (column version says which)";
    const auto column = [&](const char* name, const char* units, const char* what, const char* formula,
                            bool reproducible, const char* dimension = "") {
      return report::ColumnInfo{.name = name,
                                .units = units,
                                .long_name = what,
                                .formula = formula,
                                .reproducible = reproducible,
                                .missing_reason = missing,
                                .dimension = dimension};
    };
    std::vector<report::ColumnInfo> columns{
        column("time", "s", "time of one call, inputs in memory, warm", "wall clock of each repetition",
               false, "sample"),
        column("time_median", "s", "median time of one call", "median of time", false),
        column("time_low", "s", "lower end of the median's 95 % interval", "order statistics of time", false),
        column("time_high", "s", "upper end of the median's 95 % interval", "order statistics of time",
               false),
        column("dense_equivalent_flops", "FLOP", "work of dense attention on the visible pairs",
               "4 d a pair forward, 10 d backward", true),
        column("dense_equivalent_rate", "FLOP/s",
               "dense work over the time; not work done, for sparse implementations",
               "dense_equivalent_flops / time_median", false),
        column("peak_memory_bytes", "bytes", "memory beyond the inputs at the peak of one call",
               "largest resident set during a call less the resident set before it", false),
        column("mse", "1", "error of the output",
               "mean (out - ref)^2, ref: float64 with the same normalizer, last 256 rows", false),
        column("nmse", "1", "error of the output, relative", "||out - ref||^2 / ||ref||^2, last 256 rows",
               false),
        column("max_error", "1", "largest error of the output", "max |out - ref|, last 256 rows", false),
        column("support_mean", "1", "keys with p > 0 a row", "mean over the last 256 rows, float64", true),
        {.name = "warning",
         .units = "text",
         .long_name = "what spoils the timing",
         .formula = "drift or outliers of the samples",
         .is_text = true,
         .reproducible = false,
         .missing_reason = "nothing was noticed"},
        {.name = "version",
         .units = "text",
         .long_name = "version of the implementation, or why it did not run",
         .formula = "as the implementation reports it",
         .is_text = true,
         .reproducible = false},
    };
    for (report::ColumnInfo& info : counted_cpu_columns("counted of this project's implementations only"))
      columns.push_back(std::move(info));
    return columns;
  }
  bool times_cpu() const override { return true; }

  void add_from_inputs(Parameters& set) const override { add_file_layer(set); }

  void check(const Parameters& p) const override {
    refuse_scale_of_no_file(p);
    if (is_of_file(p)) {
      check_file_layer(p);
    } else {
      drawn_shape(p).validate();
    }
    for (const char* name : {"threads", "samples"}) require_one(p, name);
    Workload{.query_variance = get_number(p, "query_variance")}.validate();
  }

  Parameters used(const Parameters& p) const override {
    Parameters kept = p;
    if (is_of_file(p)) {
      kept["scale"] = scale_of(p);
      kept.erase("query_variance");
      if (get_text(p, "pass") == "forward") kept.erase("seed");
      return kept;
    }
    for (const char* name : kOfLayer) kept.erase(name);
    for (const char* name : {"input", "kv_heads"}) kept.erase(name);
    return kept;
  }

  std::string input_hash(const Parameters& p) const override {
    if (is_of_file(p)) return file_layer_key(p);
    return fmt::format("gaussian {} variance {} seed {}", to_string(drawn_shape(p)),
                       get_number(p, "query_variance"), get_integer(p, "seed"));
  }

  CaseResult evaluate(const Parameters& p) const override {
    const Problem problem = make_problem(p);
    const bool ours = !get_text(p, "implementation").starts_with("torch");
    const int before = omp_get_max_threads();
    CaseResult result = ours ? measure_ours(p, problem) : measure_peer(p, problem);
    omp_set_num_threads(before);
    return result;
  }

  void complete(const Parameters& /*parameters*/, CaseResult& result) const override { add_cpu_roof(result); }
};

const AttentionSpeed kAttentionSpeed;
const KindRegistration kAttentionSpeedRegistration(kAttentionSpeed);

}  // namespace
}  // namespace splash::experiments
