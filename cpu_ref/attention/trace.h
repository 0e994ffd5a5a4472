#pragma once
// What the CPU's implementations of attention multiply and ask of memory, as their loops do it, for whoever
// counts it or simulates caches (core/block_trace.h). The support decides which values are read, so it comes
// from a run.
//
//   const ScreenedForward run = screened_forward(spec, q, k, v, true);
//   for (const KernelTrace& part : screened_trace(spec, run.probabilities, true)) ...
//
// Products alone are counted as FLOPs: screening, Newton's steps on a row and normalisation are not. What a
// row's scores and candidates take stays in L1 and is left out.

#include <vector>

#include "core/attention_spec.h"
#include "core/block_trace.h"
#include "cpu_ref/attention/forward.h"

namespace splash::cpu_ref {

// Parts run one after another; a piece of work (KernelTrace::blocks) is what one thread takes at a time. Both
// borrow spec and support, which must outlive the traces. Throw InvalidArgument where the support is not of
// the spec's rows.
std::vector<KernelTrace> screened_trace(const AttentionSpec& spec, const SparseProbabilities<float>& support,
                                        bool backward);
std::vector<KernelTrace> reference_trace(const AttentionSpec& spec, const SparseProbabilities<float>& support,
                                         bool backward);

}  // namespace splash::cpu_ref
