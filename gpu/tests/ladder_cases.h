#pragma once
// The problems that every kernel variant is held against the double oracle on: what its Limits allow of a
// fixed list of shapes, masks, normalizers, selections and inputs, random and nasty.

#include <cstdint>
#include <string>
#include <vector>

#include "core/attention_spec.h"
#include "core/workload.h"
#include "gpu/engine/variant.h"

namespace splash::gpu::testing {

struct LadderCase {
  std::string name;  // equal names: equal spec and inputs
  AttentionSpec spec{};
  Dtype dtype = Dtype::f32;
  Workload workload{};
  void (*spoil)(AttentionInputs<double>& inputs) = nullptr;  // if not null: what makes them nasty

  AttentionInputs<double> inputs() const;  // made anew, rounded to dtype
};

// $SPLASH_TEST_SEED: a number, or "random" for fresh inputs; 1 where it is not set.
uint64_t test_seed();

void round_inputs(AttentionInputs<double>& inputs, Dtype dtype);

std::vector<LadderCase> ladder_cases(const Variant& variant, const DeviceInfo& device);

}  // namespace splash::gpu::testing
