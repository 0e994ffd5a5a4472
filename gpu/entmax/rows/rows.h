#pragma once
// alpha-entmax of the rows of a matrix in device memory, with its gradients (Peters, Niculae, Martins 2019).
// cpu_ref/entmax/rows.h does the same on the host. Compiles without nvcc.

#include <cstdint>

#include "core/dtype.h"
#include "gpu/engine/memory.h"

namespace splash::gpu::entmax {

// p = entmax of each row. scores, p: [rows, n] of one dtype, any of the four. Computed in float, for f64 in
// double: sum p is 1 within 10^-5, for f64 within 10^-9, whatever alpha, length and scores are, and each p
// is as accurate. A key whose z lies within 10^-6 of tau may be in the support or not. alpha: [alphas], 1 or
// rows, in device memory; a row whose alpha entmax does not take (core/normalizer.h) becomes NaN.
// A score of -inf is a masked key. A row of nothing else becomes zeros; one with NaN or +inf becomes NaN.
// Enqueues one kernel.
// Throws InvalidArgument where alphas is neither 1 nor rows, or an extent is negative or rows reach 2^31;
// DeviceError where the launch fails.
void entmax_rows(Dtype dtype, const void* scores, const double* alpha, int64_t alphas, int64_t rows,
                 int64_t n, void* p, StreamHandle stream);

// From p and d_p = dL/dp: d_scores [rows, n] = dL/dscores, d_alpha [rows] = dL/dalpha of each row. The same
// bits in every run. Enqueues one kernel. Throws as entmax_rows does.
void entmax_rows_gradient(Dtype dtype, const void* p, const void* d_p, const double* alpha, int64_t alphas,
                          int64_t rows, int64_t n, void* d_scores, double* d_alpha, StreamHandle stream);

}  // namespace splash::gpu::entmax
