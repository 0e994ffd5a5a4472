#pragma once
// Applies the selections of core/selection.h to one row.

#include "core/attention_spec.h"
#include "cpu_ref/attention/row.h"
#include "cpu_ref/entmax/solver.h"

namespace splash::cpu_ref {

// Removes from row.keys and row.scores what the selection drops. Leaves a poisoned row alone, unless no score
// decides (shared_keys); then only the selected scores can poison it. Uses row.p as scratch. The power
// normalizers may have alpha <= 1, where z does not rise with s, so their margin is in units of s.
template <class T>
void select_keys(const AttentionSpec& spec, const RowAddress& at, Solver solver, Row<T>& row);

}  // namespace splash::cpu_ref
