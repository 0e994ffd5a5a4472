#pragma once
// alpha-entmax of the rows of a matrix in device memory, with its gradients (Peters, Niculae, Martins 2019).
// Compiles without nvcc. cpu_ref/entmax/rows.h is the same on the host.

#include <cstdint>

#include "core/dtype.h"
#include "gpu/engine/memory.h"

namespace splash::gpu::entmax {

// p = entmax of each row. scores, p: [rows, n] of one dtype, any of the four; computed in float, double for
// f64: sum p is 1 but for 10^-5 or 10^-9, whatever alpha, length and scores are, and p is entmax's as far. Of
// keys whose z lies within 10^-6 of tau, either may be in the support. alpha: [alphas], 1 or rows, in device
// memory; a row whose alpha entmax does not take (core/normalizer.h) becomes NaN.
// -inf is a masked key; a row of them gives zeros, one with NaN or +inf a NaN row. Enqueues one kernel.
// Throws InvalidArgument where alphas is neither 1 nor rows, or an extent is negative or rows reach 2^31;
// DeviceError where the launch fails.
void entmax_rows(Dtype dtype, const void* scores, const double* alpha, int64_t alphas, int64_t rows,
                 int64_t n, void* p, StreamHandle stream);

// From p and dL/dp: d_scores [rows, n] = dL/dscores, d_alpha [rows] = dL/dalpha of each row. The same bits
// every run.
void entmax_rows_gradient(Dtype dtype, const void* p, const void* d_p, const double* alpha, int64_t alphas,
                          int64_t rows, int64_t n, void* d_scores, double* d_alpha, StreamHandle stream);

}  // namespace splash::gpu::entmax
