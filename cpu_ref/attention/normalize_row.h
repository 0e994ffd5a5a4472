#pragma once
// Turns the scores of one row into its probabilities.

#include "core/normalizer.h"
#include "cpu_ref/attention/row.h"
#include "cpu_ref/entmax/solver.h"

namespace splash::cpu_ref {

// Throws Unsupported if the solver does not take the alpha of some head.
void require_solver(const Normalizer& normalizer, Solver solver);

// Fills row.p from row.scores and, where it has one, row.p_sink from its sink. Returns tau in units of z:
// +inf for a row without keys and sink, and NaN for normalizers other than entmax. A poisoned row gets NaN.
// `iterations`, if given, receives the solver's count.
template <class T>
double normalize_row(const Normalizer& normalizer, int64_t q_head, Solver solver, Row<T>& row,
                     const SolverOptions& options = {}, int* iterations = nullptr);

}  // namespace splash::cpu_ref
