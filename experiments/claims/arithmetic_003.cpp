// 003, large head dimensions: fp32, one query per block of 256 threads.

#include <algorithm>

#include "analysis/counts.h"
#include "experiments/claims/arithmetic_parts.h"

namespace splash::experiments {
namespace {

constexpr double kFloat = 4, kMega = 1e6;

// TFLOP/s of `heads` heads of square attention in `ms`.
double tflops(double heads, double length, double head_dim, double ms) {
  return analysis::forward_flops(heads * length * length, head_dim) / (ms * 1e-3) / 1e12;
}

// The document's example: one head, 16 queries and keys, head_dim 8192, 0.183 ms.
constexpr double kLength = 16, kDim = 8192, kTime = 0.183e-3;
constexpr double kTensorBytes = kLength * kDim * kFloat;  // Q, K, V or O, read once
constexpr double kWorkingSet = 2 * kTensorBytes;          // K and V
constexpr double kL1 = 128 * 1024, kL2 = 40e6;
constexpr double kLoads = kTensorBytes + 2 * kLength * kTensorBytes;  // Q once, K and V once per query
constexpr double kPeakBandwidth = 2e12;

// NVIDIA A100 80 GB data sheet: fp32 19.5 TFLOP/s without tensor cores, 2039 GB/s.
constexpr double kA100Flops = 19.5e12, kA100Bandwidth = 2.039e12;

// K and V of one head of 16 keys: the table of the document's section 4.
constexpr double working_set(double head_dim) {
  return 2 * kLength * head_dim * kFloat;
}

double idle_share(double blocks, double multiprocessors) {
  return std::max(0.0, 1 - blocks / multiprocessors);
}

}  // namespace

ClaimArithmetics arithmetic_of_large_head_dims() {
  const double score_flops = 2 * kLength * kDim;
  const double score_bytes = kDim * kFloat + kTensorBytes, value_bytes = kTensorBytes + kLength * kFloat;
  return {
      {"S3.1a", {tflops(4, 64, 512, 0.044), "4 d x 4 heads x 64 x 64 pairs / 0.044 ms"}},
      {"S3.1b", {tflops(4, 64, 2048, 0.156), "4 d x 4 heads x 64 x 64 pairs / 0.156 ms"}},
      {"S3.1c",
       {tflops(4, 16, 4096, 0.124), "4 d x 4 heads x 16 x 16 pairs / 0.124 ms; with one head it is 0.034"}},
      {"S3.1d",
       {tflops(1, 16, 8192, 0.183), "4 d x 1 head x 16 x 16 pairs / 0.183 ms, the document's own 8.4 MFLOP"}},
      {"S3.2a",
       {analysis::arithmetic_intensity(score_flops, score_bytes),
        "2 x 16 x 8192 FLOP / (q 32,768 + K 524,288 bytes)"}},
      {"S3.2b",
       {analysis::arithmetic_intensity(score_flops, value_bytes),
        "2 x 16 x 8192 FLOP / (V 524,288 + scores 64 bytes)"}},
      {"S3.3a", {64 * kTensorBytes / kMega, "64 queries x 16 keys x 8192 x 4 bytes"}},
      {"S3.3b", {64 * kTensorBytes / kMega, "64 queries x 16 keys x 8192 x 4 bytes"}},
      {"S3.4a", {working_set(512) / 1024, "K and V: 2 x 16 x 512 x 4 bytes"}},
      {"S3.4b", {kWorkingSet / 1024, "K and V: 2 x 16 x 8192 x 4 bytes"}},
      {"S3.4c", {kWorkingSet / kL2, "K and V 1.05 MB / L2 40 MB"}},
      {"S3.4d",
       {100 / kLength, "K and V fit L2 and are read 16 times, so at most the first reading misses: 1 / 16"}},
      {"S3.4e", {working_set(2048) / 1024, "K and V: 2 x 16 x 2048 x 4 bytes"}},
      {"S3.4f", {working_set(4096) / 1024, "K and V: 2 x 16 x 4096 x 4 bytes"}},
      {"S3.4g", {working_set(512) / kL1, "K and V 64 KB / L1 128 KB"}},
      {"S3.4h", {working_set(2048) / kL1, "K and V 256 KB / L1 128 KB"}},
      {"S3.4i", {working_set(4096) / kL1, "K and V 512 KB / L1 128 KB"}},
      {"S3.4j", {working_set(8192) / kL1, "K and V 1024 KB / L1 128 KB"}},
      {"S3.4k", {working_set(512) / kL2, "K and V 0.066 MB / L2 40 MB"}},
      {"S3.4l", {working_set(2048) / kL2, "K and V 0.26 MB / L2 40 MB"}},
      {"S3.4m", {working_set(4096) / kL2, "K and V 0.52 MB / L2 40 MB"}},
      {"S3.5a", {kLoads / kTime / 1e9, "(Q 0.52 + K 8.39 + V 8.39 MB) / 0.183 ms"}},
      {"S3.5b", {100 * kLoads / kTime / kPeakBandwidth, "94.5 GB/s / 2000 GB/s"}},
      {"S3.5c",
       {100 * 4 * kTensorBytes / kTime / kPeakBandwidth,
        "from DRAM each of Q, K, V, O once: 2.1 MB / 0.183 ms = 11.5 GB/s of 2000"}},
      {"S3.6a",
       {100 * idle_share(256, 140), "256 blocks on at most 140 multiprocessors: each has one or more"}},
      {"S3.6b", {100 * idle_share(16, 80), "16 blocks on 80 multiprocessors, the fewest named; 89 % of 140"}},
      {"S3.7a", {(64 + 32) * kFloat, "(64 + 32) x 4 bytes"}},
      {"S3.7b", {100 * (64 + 32) * kFloat / (48 * 1024), "384 / 49,152 bytes"}},
      {"S3.8",
       {kA100Flops / kA100Bandwidth,
        "A100 80 GB data sheet, fp32 without tensor cores: 19.5 TFLOP/s / 2.039 TB/s; 153 only with fp16 "
        "tensor cores"}},
      {"S3.9b",
       {2 * kLength * kTensorBytes / kWorkingSet,
        "K and V 16.8 MB once a query, 1.05 MB once a block of 16"}},
      {"S3.9c",
       {(kLoads + kTensorBytes) / (4 * kTensorBytes), "with Q and O: (1.05 + 16.8 MB) / (1.05 + 1.05 MB)"}},
      {"S3.9d", {1.0, "K and V fit L2 either way, so DRAM gives 2.1 MB before and after"}},
      {"S3.9e", {1 / kLength, "16 queries: 16 blocks of one query become 1 block of 16"}},
  };
}

}  // namespace splash::experiments
