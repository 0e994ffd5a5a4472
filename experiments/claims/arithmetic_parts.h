#pragma once
// The arithmetic of each source document, one file each; arithmetic.cpp joins them.

#include <string>
#include <utility>
#include <vector>

#include "experiments/claims/arithmetic.h"

namespace splash::experiments {

struct ClaimArithmetic {
  std::string id;
  Arithmetic answer;
};
using ClaimArithmetics = std::vector<ClaimArithmetic>;

ClaimArithmetics arithmetic_of_splash_plan();      // 000
ClaimArithmetics arithmetic_of_kascade_plan();     // 001
ClaimArithmetics arithmetic_of_wmma_ladder();      // 002
ClaimArithmetics arithmetic_of_large_head_dims();  // 003
ClaimArithmetics arithmetic_of_adaptive_splash();  // 004
ClaimArithmetics arithmetic_of_papers();

}  // namespace splash::experiments
