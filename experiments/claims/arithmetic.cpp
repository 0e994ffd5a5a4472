#include "experiments/claims/arithmetic.h"

#include "experiments/claims/arithmetic_parts.h"

namespace splash::experiments {

const std::map<std::string, std::function<Arithmetic()>>& arithmetic_judges() {
  static const auto judges = [] {
    std::map<std::string, std::function<Arithmetic()>> all;
    for (const auto part :
         {arithmetic_of_splash_plan, arithmetic_of_kascade_plan, arithmetic_of_wmma_ladder,
          arithmetic_of_large_head_dims, arithmetic_of_adaptive_splash, arithmetic_of_papers}) {
      for (const ClaimArithmetic& claim : part()) {
        all[claim.id] = [answer = claim.answer] { return answer; };
      }
    }
    return all;
  }();
  return judges;
}

}  // namespace splash::experiments
