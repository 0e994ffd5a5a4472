// 001, the Kascade plan: the combined effect of its phases. 002, the WMMA ladder: ratios and shared memory.

#include <algorithm>

#include "experiments/claims/arithmetic_parts.h"

namespace splash::experiments {
namespace {

// 001. The ends of the plan's ranges, as factors.
constexpr double kStart = 0.66;
constexpr double kPhase1Low = 1.10 * 1.05 * 1.03,
                 kPhase1High = 1.15 * 1.10 * 1.05;  // registers, broadcasts, hints
constexpr double kTilesLow = 1.15, kTilesHigh = 1.25;
constexpr double kPrefetchLow = 1.30, kPrefetchHigh = 1.50;

// 002. Times in ms on an L4.
constexpr double kV1 = 0.503, kV2 = 0.3184, kSdpa = 0.23 * kV2;

// Shared memory of the WMMA kernel in KB: head_dim 64, 32 keys per tile, fp16 operands, fp32 scores and
// outputs.
constexpr double kKilo = 1024, kHalf = 2, kFloat = 4, kDim = 64, kTileN = 32;
double q_tile(double rows) {
  return rows * kDim * kHalf / kKilo;
}
double kv_tile() {
  return kTileN * kDim * kHalf / kKilo;
}
double scores(double rows) {
  return rows * kTileN * kFloat / kKilo;
}
double partial_output(double rows) {
  return rows * kDim * kFloat / kKilo;
}
double shared_memory(double rows, double q_buffers, double kv_buffers) {
  return q_buffers * q_tile(rows) + kv_buffers * 2 * kv_tile() + scores(rows) + partial_output(rows);
}

}  // namespace

ClaimArithmetics arithmetic_of_kascade_plan() {
  return {
      {"S1.0a", {1 / kStart, "1 / 0.66"}},
      {"S1.6a", {kStart * kPhase1Low, "0.66 x 1.10 x 1.05 x 1.03"}},
      {"S1.6b", {kStart * kPhase1High, "0.66 x 1.15 x 1.10 x 1.05"}},
      {"S1.6c", {kStart * kPhase1Low * kTilesLow, "0.66 x 1.10 x 1.05 x 1.03 x 1.15"}},
      {"S1.6d", {kStart * kPhase1High * kTilesHigh, "0.66 x 1.15 x 1.10 x 1.05 x 1.25"}},
      {"S1.6e", {kStart * kPhase1Low * kTilesLow * kPrefetchLow, "0.66 x 1.10 x 1.05 x 1.03 x 1.15 x 1.30"}},
      {"S1.6f",
       {kStart * kPhase1High * kTilesHigh * kPrefetchHigh, "0.66 x 1.15 x 1.10 x 1.05 x 1.25 x 1.50"}},
  };
}

ClaimArithmetics arithmetic_of_wmma_ladder() {
  return {
      {"S2.0a", {kV1 / kV2, "0.503 / 0.3184"}},
      {"S2.0b", {kV1 / 0.20, "0.503 / 0.20"}},
      {"S2.0c", {kSdpa / 0.20, "SDPA at 0.23 x 0.3184 = 0.0732 ms; 0.0732 / 0.20"}},
      {"S2.4b", {shared_memory(64, 1, 1), "Q 8 + K 4 + V 4 + scores 8 + partial output 16 KB"}},
      {"S2.4c",
       {512 / kTileN, "512 keys / 32 a tile, whatever TILE_M; only the query blocks halve, 16 to 8"}},
      {"S2.5b", {shared_memory(64, 2, 2), "2 x (Q 8 + K 4 + V 4) + scores 8 + partial output 16 KB"}},
      {"S2.5c",
       {99,
        "shared memory a block may opt in to, CUDA C++ Programming Guide, technical specifications by "
        "compute "
        "capability: 163 KB on 8.0, 99 KB on 8.6 and 8.9 (L4), 227 KB on 9.0; 48 KB without opting in"}},
      {"S2.5d", {shared_memory(64, 1, 2), "Q once, 8 + 2 x (K 4 + V 4) + scores 8 + partial output 16 KB"}},
      {"S2.5e",
       {shared_memory(32, 2, 2), "TILE_M 32: 2 x (Q 4 + K 4 + V 4) + scores 4 + partial output 8 KB"}},
      {"S2.6b", {kV1 / 0.15, "0.503 / 0.15"}},
      {"S2.6c", {kSdpa / 0.15, "SDPA at 0.23 x 0.3184 = 0.0732 ms; 0.0732 / 0.15"}},
  };
}

}  // namespace splash::experiments
