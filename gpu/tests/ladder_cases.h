#pragma once
// The problems on which every kernel variant is compared with the double oracle: from a fixed list of shapes,
// masks, normalizers, selections and inputs (random and difficult ones), whatever its Limits allow.

#include <cstdint>
#include <random>
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

// The number that inputs are drawn from: what the variable SPLASH_TEST_SEED says, or a new one where it says
// "random"; 1 if it is not set (null). told: how a new one's numbers come again; else empty.
struct TestSeed {
  uint64_t number = 1;
  std::string told;

  static TestSeed of(const char* variable);
};

// $SPLASH_TEST_SEED's. The first call says on stderr how a new one's numbers come again.
uint64_t test_seed();

// A bias whose entries float holds exactly.
inline DistanceBias draw_bias(std::mt19937_64& random, int64_t q_heads, int64_t distances, int64_t first) {
  DistanceBias bias{.distances = distances, .first = first};
  for (int64_t i = 0; i < q_heads * distances; ++i)
    bias.table.push_back(static_cast<double>(random() % 65) / 16 - 2);
  return bias;
}

void round_inputs(AttentionInputs<double>& inputs, Dtype dtype);

std::vector<LadderCase> ladder_cases(const Variant& variant, const DeviceInfo& device);

}  // namespace splash::gpu::testing
