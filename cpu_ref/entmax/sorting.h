#pragma once
// Exact thresholds from sorted scores, without iteration: alpha = 2 (sparsemax: Held, Wolfe, Crowder 1974;
// Martins, Astudillo 2016) and alpha = 1.5 (Peters, Niculae, Martins 2019, algorithm 2).
//
// Time O(n + m log m) and memory O(m), where m keys lie within 1 of the maximum. No other key can be in the
// support.

#include <span>

#include "cpu_ref/entmax/solver.h"

namespace splash::cpu_ref {

// z: [n], n >= 1, with a visible key and no NaN or +inf; max: the largest of them; alpha 1.5 or 2.
template <class T>
RowSolution<T> solve_sorting(std::span<const T> z, T max, double alpha);

}  // namespace splash::cpu_ref
