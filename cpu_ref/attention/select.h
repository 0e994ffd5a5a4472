#pragma once
// The selections of core/selection.h, on one row.

#include "core/attention_spec.h"
#include "cpu_ref/attention/row.h"
#include "cpu_ref/entmax/solver.h"

namespace splash::cpu_ref {

// Removes from row.keys and row.scores what the selection drops. Leaves a poisoned row alone. Uses row.p as
// scratch. The power normalizers may have alpha <= 1, where z does not rise with s: their margin is in units
// of s.
template <class T>
void select_keys(const AttentionSpec& spec, int64_t q_head, Solver solver, Row<T>& row);

}  // namespace splash::cpu_ref
