#pragma once
// The problems on which every kernel variant is compared with the double oracle: from a fixed list of shapes,
// masks, normalizers, selections and inputs (random and difficult ones), whatever its Limits allow.

#include <cstdint>
#include <string>
#include <vector>

#include "core/attention_spec.h"
#include "core/workload.h"
#include "gpu/engine/variant.h"

namespace splash::gpu::testing {

struct LadderCase {
  std::string name;  // cases with equal names have equal spec and inputs
  AttentionSpec spec{};
  Dtype dtype = Dtype::f32;
  Workload workload{};
  void (*spoil)(AttentionInputs<double>& inputs) = nullptr;  // if not null: makes the inputs difficult

  AttentionInputs<double> inputs() const;  // made at each call, rounded to dtype
};

// $SPLASH_TEST_SEED: a number, or "random" for new inputs; 1 if it is not set.
uint64_t test_seed();

void round_inputs(AttentionInputs<double>& inputs, Dtype dtype);

std::vector<LadderCase> ladder_cases(const Variant& variant, const DeviceInfo& device);

}  // namespace splash::gpu::testing
