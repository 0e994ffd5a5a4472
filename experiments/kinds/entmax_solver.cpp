// Measures cost and accuracy of a solver of tau on rows of synthetic scores or of a head in a file.

#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "core/error.h"
#include "core/normalizer.h"
#include "core/workload.h"
#include "cpu_ref/entmax/evaluate.h"
#include "cpu_ref/entmax/solver.h"
#include "experiments/kinds/support/inputs.h"
#include "experiments/kinds/support/lru_cache.h"
#include "experiments/kinds/support/timing.h"

namespace splash::experiments {
namespace {

using cpu_ref::RowSolution;
using cpu_ref::Solver;
using Rows = std::vector<std::vector<double>>;

constexpr const char* kSynthetic = "workload";
constexpr const char* kOfFile[] = {"layer", "head",   "call",     "batch_entry",
                                   "scale", "length", "head_dim", "causal"};  // parameters of inputs.h
constexpr const char* kOfWorkload[] = {"workload", "query_variance", "gap", "spread", "seed"};

Workload workload_of(const Parameters& p, int64_t row) {
  Workload workload;
  workload.kind = workload_from_string(get_text(p, "workload"));
  workload.seed = static_cast<uint64_t>(get_integer(p, "seed") + row);
  workload.query_variance = get_number(p, "query_variance");
  workload.gap = get_number(p, "gap");
  workload.spread = get_number(p, "spread");
  return workload;
}

std::string row_key(const Parameters& p) {
  if (is_of_file(p))
    return fmt::format("{} causal {} rows {}", file_input_key(p), get_flag(p, "causal"),
                       get_integer(p, "rows"));
  return fmt::format("{} n {} rows {} seed {} variance {} gap {} spread {}", get_text(p, "workload"),
                     get_integer(p, "n"), get_integer(p, "rows"), get_integer(p, "seed"),
                     get_number(p, "query_variance"), get_number(p, "gap"), get_number(p, "spread"));
}

// The scores of a head's last queries; each row holds the keys that its query sees.
Rows rows_of_file(const Parameters& p) {
  const auto inputs = load_inputs(p);
  const AttentionSpec spec = input_spec(p, *inputs);
  const auto q = inputs->q.matrix(0, 0), k = inputs->k.matrix(0, 0);
  Rows rows;
  for (int64_t r = spec.shape.q_len - get_integer(p, "rows"); r < spec.shape.q_len; ++r) {
    const RowMask mask = spec.mask.row(spec.shape, 0, 0, r);  // without positions: a range of keys
    const Eigen::VectorXd scores =
        scale_of(p) * (k.middleRows(mask.begin, mask.end - mask.begin) * q.row(r).transpose());
    rows.emplace_back(scores.begin(), scores.end());
  }
  return rows;
}

// Rows of scores s: drawn with one seed per row, or read from a file.
std::shared_ptr<const Rows> score_rows(const Parameters& p) {
  static LruCache<Rows> cache(int64_t{64} << 20);
  const auto make = [&] {
    if (is_of_file(p)) return rows_of_file(p);
    Rows rows;
    for (int64_t r = 0; r < get_integer(p, "rows"); ++r) {
      rows.push_back(make_score_row(workload_of(p, r), get_integer(p, "n")));
    }
    return rows;
  };
  return cache.get(row_key(p), make, [](const Rows& rows) {
    return static_cast<int64_t>(rows.size() * rows.back().size() * sizeof(double));
  });
}

cpu_ref::SolverOptions options_of(const Parameters& p) {
  return {.max_iterations = static_cast<int>(get_integer(p, "max_iterations")),
          .tolerance = get_number(p, "tolerance"),
          .histogram_bins = static_cast<int>(get_integer(p, "histogram_bins"))};
}

// sum p - 1| at exactly the solver's tau, computed in double in whatever precision the solver worked.
template <class T>
double true_residual(const std::vector<T>& z, double alpha, const RowSolution<T>& solution) {
  const double max = solution.max, offset = solution.offset;
  return std::abs(cpu_ref::evaluate(z.data(), static_cast<int64_t>(z.size()), max, offset, alpha).f());
}

// Extra memory to solve one row, counted from the solvers' code. The row itself is read in place.
int64_t counted_bytes(Solver solver, int64_t n, int64_t bytes_a_value, int64_t bins) {
  if (solver == Solver::sorting) return n * bytes_a_value;  // a sorted copy, in the worst case of all keys
  if (solver == Solver::histogram) return (bins + 1) * static_cast<int64_t>(sizeof(int64_t));
  return 0;
}

template <class T>
CaseResult measure(const Parameters& p) {
  const Solver solver = cpu_ref::solver_from_string(get_text(p, "solver"));
  const double alpha = get_number(p, "alpha");
  const auto options = options_of(p);
  const auto scores = score_rows(p);
  std::vector<std::vector<T>> z;
  for (const auto& row : *scores) {
    z.emplace_back();
    for (const double s : row) z.back().push_back(static_cast<T>((alpha - 1) * s));
  }

  CaseResult result;
  double iterations = 0, most = 0, residual = 0, tau_error = 0, support = 0;
  for (const auto& row : z) {
    const auto solution = cpu_ref::solve_tau<T>(solver, row, alpha, options);
    // The reference gets the same rounded scores, so that only the solver's error is measured.
    const std::vector<double> wide(row.begin(), row.end());
    const auto exact = cpu_ref::solve_tau<double>(Solver::bisection, wide, alpha);
    iterations += solution.iterations;
    most = std::max<double>(most, solution.iterations);
    residual = std::max(residual, true_residual(row, alpha, solution));
    tau_error = std::max(tau_error, std::abs(static_cast<double>(solution.offset) - exact.offset));
    support += static_cast<double>(solution.support);
  }
  const auto count = static_cast<double>(z.size());
  result.numbers = {{"iterations_mean", iterations / count},
                    {"iterations_max", most},
                    {"residual_max", residual},
                    {"tau_error_max", tau_error},
                    {"support_mean", support / count}};

  double sink = 0;
  const auto solve_all = [&] {
    for (const auto& row : z) sink += cpu_ref::solve_tau<T>(solver, row, alpha, options).offset;
  };
  add_samples(time_on_host(solve_all, get_integer(p, "samples")), result);
  if (std::isnan(sink)) throw Error("a row gave a NaN threshold");  // also keeps the loop from being removed
  result.numbers["memory_bytes"] = static_cast<double>(
      counted_bytes(solver, get_integer(p, "n"), static_cast<int64_t>(sizeof(T)), options.histogram_bins));
  return result;
}

void check_rows_of_file(const Parameters& p) {
  const int64_t n = get_integer(p, "n"), length = get_integer(p, "length");
  if (n != length)
    throw InvalidArgument(fmt::format("n is {}; rows of a file have its length, {}", n, length));
  check_file_scores(p);
}

class EntmaxSolver : public Kind {
 public:
  std::string name() const override { return "entmax-solver"; }
  std::string summary() const override {
    return "iterations, residual, time and memory of the solvers of entmax's threshold";
  }

  std::vector<ParameterInfo> parameters() const override {
    using enum ParameterType;
    std::vector<ParameterInfo> list{
        {"input",
         text,
         std::string(kSynthetic),
         "",
         "workload: synthetic rows; or a decoder's captured head, or a file of q, k and v: its last queries",
         {kSynthetic, "smollm2"},
         tensor_file_endings()},
        {"solver",
         text,
         std::string("newton"),
         "",
         "how tau is found",
         {"bisection", "sorting", "newton", "halley_bisection", "histogram"}},
        {"alpha", number, 1.5, "1", "entmax's alpha", {}},
        {"n", integer, int64_t{8192}, "1", "keys a row; of a file, its keys", {}},
        {"workload",
         text,
         std::string("gaussian"),
         "",
         "distribution of the scores",
         {"gaussian", "clustered", "local", "sink", "ties"}},
        {"query_variance", number, 1.0, "1", "variance of Gaussian scores", {}},
        {"gap", number, 1.0, "1", "sink: score of key 0 above the crowd's mean", {}},
        {"spread", number, 0.2, "1", "sink: standard deviation of the crowd; clustered: around a centre", {}},
        {"seed", integer, int64_t{1}, "1", "seed of the first row; later rows count on", {}},
        {"rows", integer, int64_t{32}, "1", "rows solved", {}},
        {"dtype", text, std::string("float32"), "", "element type", {"float32", "float64"}},
        {"tolerance", number, 0.0, "1", "stop at |sum p - 1| <= tolerance; 0: until tau stands still", {}},
        {"max_iterations", integer, int64_t{0}, "1", "stop after so many; 0: no limit", {}},
        {"histogram_bins", integer, int64_t{64}, "1", "bins of the histogram start", {}},
        {"samples", integer, int64_t{5}, "1", "timed repetitions", {}},
    };
    for (ParameterInfo& info : input_parameters(kOfFile)) list.push_back(std::move(info));
    return list;
  }

  std::vector<report::ColumnInfo> columns() const override {
    const auto timing = [](const char* name, const char* what, const char* formula, const char* dimension) {
      return report::ColumnInfo{.name = name,
                                .units = "s",
                                .long_name = what,
                                .formula = formula,
                                .reproducible = false,
                                .dimension = dimension};
    };
    return {
        {.name = "iterations_mean",
         .units = "1",
         .long_name = "evaluations of f after the start, mean over rows",
         .formula = "sum of iterations / rows"},
        {.name = "iterations_max",
         .units = "1",
         .long_name = "evaluations of f after the start, largest over rows",
         .formula = "max of iterations"},
        {.name = "residual_max",
         .units = "1",
         .long_name = "distance of a row's sum from 1, largest over rows",
         .formula = "max |sum p - 1| in float64, no renormalisation"},
        {.name = "tau_error_max",
         .units = "1",
         .long_name = "error of the threshold, largest over rows",
         .formula = "max |tau - tau of float64 bisection on the same rounded row|, in units of z"},
        {.name = "support_mean",
         .units = "1",
         .long_name = "keys with p > 0, mean over rows",
         .formula = "sum of supports / rows"},
        timing("time", "time for all rows on one thread, one value a repetition",
               "wall clock around all rows", "sample"),
        timing("time_median", "median time for all rows", "median of time", ""),
        timing("time_low", "lower end of the median's 95 % interval", "order statistics of time", ""),
        timing("time_high", "upper end of the median's 95 % interval", "order statistics of time", ""),
        {.name = "memory_bytes",
         .units = "bytes",
         .long_name = "extra memory while a row is solved, counted",
         .formula =
             "sorting: n x bytes a value; histogram: (bins + 1) x 8; others 0: the row is read in place"},
    };
  }

  void add_from_inputs(Parameters& set) const override {
    add_file_inputs(set);
    if (is_set_to_file(set)) set.try_emplace("n", set.at("length"));
  }

  void check(const Parameters& p) const override {
    for (const char* name : {"n", "rows", "samples", "histogram_bins"}) {
      if (get_integer(p, name) < 1) {
        throw InvalidArgument(fmt::format("{} is {}; it must be at least 1", name, get_integer(p, name)));
      }
    }
    if (is_of_file(p)) {
      check_rows_of_file(p);
    } else {
      workload_of(p, 0).validate();
    }
    const Solver solver = cpu_ref::solver_from_string(get_text(p, "solver"));
    const double alpha = get_number(p, "alpha");
    require_entmax_alpha(alpha);
    if (!cpu_ref::supports_alpha(solver, alpha)) {
      throw InvalidArgument(
          fmt::format("solver {} does not take alpha {}; sorting takes 1.5 and 2, newton and "
                      "histogram those up to 2, the others any",
                      to_string(solver), alpha));
    }
    if (get_integer(p, "max_iterations") < 0)
      throw InvalidArgument("max_iterations must be 0 (no limit) or more");
    if (!(get_number(p, "tolerance") >= 0)) throw InvalidArgument("tolerance must be 0 or more");
  }

  Parameters used(const Parameters& p) const override {
    Parameters kept = p;
    if (is_of_file(p)) {
      kept["scale"] = scale_of(p);
      for (const char* name : kOfWorkload) kept.erase(name);
    } else {
      kept.erase("input");
      for (const char* name : kOfFile) kept.erase(name);
      keep_used_workload(kept);
    }
    const Solver solver = cpu_ref::solver_from_string(get_text(p, "solver"));
    if (solver != Solver::histogram) kept.erase("histogram_bins");
    if (solver == Solver::sorting) {
      for (const char* name : {"tolerance", "max_iterations"}) kept.erase(name);
    }
    return kept;
  }

  std::string input_hash(const Parameters& p) const override { return row_key(p); }

  CaseResult evaluate(const Parameters& p) const override {
    return get_text(p, "dtype") == "float64" ? measure<double>(p) : measure<float>(p);
  }

 private:
  static void keep_used_workload(Parameters& kept) {
    const WorkloadKind workload = workload_from_string(get_text(kept, "workload"));
    if (workload == WorkloadKind::sink) {
      kept.erase("query_variance");
    } else {
      kept.erase("gap");
      if (workload != WorkloadKind::clustered) kept.erase("spread");
    }
  }
};

const EntmaxSolver kEntmaxSolver;
const KindRegistration kEntmaxSolverRegistration(kEntmaxSolver);

}  // namespace
}  // namespace splash::experiments
