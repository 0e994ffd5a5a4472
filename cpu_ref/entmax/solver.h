#pragma once
// The threshold tau of one row of alpha-entmax: p_j = [z_j - tau]_+^(1/(alpha-1)) with sum p = 1, where
// z = (alpha-1) s.
//
// Every solver works on x = z - max(z), so that huge logits lose nothing, and returns tau as max + offset,
// rounded to T. Probabilities are not computed from that tau. It is where settle() starts (threshold.h),
// which states the threshold such that sum p = 1 holds for any alpha and length. Entries of -inf are masked
// keys. A row without visible keys, or without keys, has support 0, p = 0, max 0, and offset and tau +inf. A
// row with NaN or +inf has support 0, and max, offset, residual and every p are NaN.

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace splash::cpu_ref {

enum class Solver {
  bisection,         // any alpha; the reference
  sorting,           // alpha = 1.5 and 2, exact
  newton,            // 1 < alpha <= 2, from the left: every iterate is a lower bound of tau
  halley_bisection,  // any alpha (AdaSplash, arXiv 2502.12082)
  histogram,         // 1 < alpha <= 2: histogram lower bound (AdaSplash-2, arXiv 2604.15180), then Newton
};

std::string_view to_string(Solver solver);
Solver solver_from_string(std::string_view name);  // throws InvalidArgument
bool supports_alpha(Solver solver, double alpha);  // whether the solver takes this alpha

template <class T>
struct RowSolution {
  T max = 0;            // largest z of the row
  T offset = 0;         // tau - max, in [-1, 0]
  int64_t support = 0;  // keys with p > 0
  int iterations = 0;   // evaluations of f over the row after the first (sorting: 0)
  T residual = 0;       // |sum p - 1| at this tau, as precisely as sums in T can tell

  double tau() const { return static_cast<double>(max) + static_cast<double>(offset); }
};

struct SolverOptions {
  int max_iterations = 0;  // 0: as many as the element type needs until tau stands still
  double tolerance = 0;    // stop once |f| <= tolerance; 0: until tau stands still
  int histogram_bins = 64;
  // Warm start: a guess of tau - max, clamped to the bracket; NaN is ignored. The result stays exact. newton
  // and halley_bisection use it, the others do not.
  const double* start = nullptr;
};

// Solves one row. z: [n], already multiplied by alpha - 1, n >= 0. Time O(n) per iteration (sorting: O(n log
// n)). Every loop is capped, so no input hangs. Throws InvalidArgument for an alpha that entmax does not take
// (core/normalizer.h) and for options out of range, Unsupported if the solver does not take alpha.
template <class T>
RowSolution<T> solve_tau(Solver solver, std::span<const T> z, double alpha,
                         const SolverOptions& options = {});

// p of the row. settle() finds its threshold, starting from the solution's. z, p: [n]; they may be the same
// memory.
template <class T>
void entmax_probabilities(std::span<const T> z, double alpha, const RowSolution<T>& solution, std::span<T> p);

// p = entmax of one row of scores, without overflow of z. The solver only finds where settle() starts; for
// alpha > 2, where settle() needs no start, it does not run. Returns tau in units of z: NaN for a poisoned
// row, +inf for one without visible keys. scores, p: [n], not the same memory. `iterations`, if given,
// receives the solver's count. Allocates nothing except in the solver. Throws what solve_tau throws.
template <class T>
double entmax_row(Solver solver, std::span<const T> scores, double alpha, std::span<T> p,
                  const SolverOptions& options = {}, int* iterations = nullptr);

// For convenience: scores in, probabilities out. The calculator and tests use it.
struct EntmaxRow {
  std::vector<double> probabilities;
  double tau = 0;  // in units of z
  int64_t support = 0;
  int iterations = 0;
  double residual = 0;  // |sum p - 1|
};
EntmaxRow entmax(std::span<const double> scores, double alpha, Solver solver = Solver::bisection,
                 const SolverOptions& options = {});

}  // namespace splash::cpu_ref
