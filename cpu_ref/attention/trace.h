#pragma once
// What the CPU's implementations of attention multiply, read and write, step by step as their loops do it, to
// count it or to simulate caches (core/block_trace.h). The support decides which values are read, so it comes
// from a run.
//
//   const ScreenedForward run = screened_forward(spec, q, k, v, true);
//   for (const KernelTrace& part : screened_trace(spec, run.probabilities, true)) ...
//
// Only products count as FLOPs; screening, Newton's steps on a row and normalisation do not. A row's scores
// and candidates stay in L1, so their accesses are left out.

#include <vector>

#include "core/attention_spec.h"
#include "core/block_trace.h"
#include "cpu_ref/attention/forward.h"

namespace splash::cpu_ref {

// The parts run one after another; a piece of work (KernelTrace::blocks) is what one thread takes at a time.
// Both functions keep references to spec and support, which must outlive the traces. They throw
// InvalidArgument if the support does not have the spec's rows.
std::vector<KernelTrace> screened_trace(const AttentionSpec& spec, const SparseProbabilities<float>& support,
                                        bool backward);
std::vector<KernelTrace> reference_trace(const AttentionSpec& spec, const SparseProbabilities<float>& support,
                                         bool backward);

}  // namespace splash::cpu_ref
