// Rung 7: the host chooses the rung for each shape, by measurements on this GPU if there are any
// (gpu/engine/chooser.h). If the products are too small to fill 128 x 256 tiles, latency decides, and one
// launch wins (rung 5). Beyond that the rate decides (rung 6).
//
// Arithmetic: rung 5 needs ~3 us for any work at all, then runs at ~30 TFLOP/s (bf16) or ~15 (fp32). Rung 6
// runs at ~500 and ~260, but its launches cost ~6 us, and a tile of scores costs head_dim / 64 (fp32: 32)
// steps of 0.33 us even when only part of it is used.

#include "gpu/engine/chooser.h"
#include "gpu/ladders/large_dims/common.cuh"

namespace splash::gpu {
namespace {

using namespace large_dims;

constexpr const char* kSelf = "large_dims/7-chosen";
constexpr const char* kLatency = "large_dims/5-fragments";  // one launch
constexpr const char* kRate = "large_dims/6-wgmma";         // several

const Variant& choose(const AttentionSpec& spec, Dtype dtype, const DeviceInfo& device) {
  if (const Variant* const tuned = tuned_variant(kSelf, spec, dtype, device)) return *tuned;
  const AttentionShape& s = spec.shape;
  const double products = 4.0 * static_cast<double>(s.rows() * s.kv_len * s.head_dim);
  const bool bf16 = dtype == Dtype::bf16;
  const double steps = static_cast<double>(s.head_dim) / (bf16 ? 64 : 32) *
                       static_cast<double>(1 + s.rows() * ceil_div(s.kv_len, 256) / 128 / 132);
  const double latency = 3e-6 + products / (bf16 ? 30e12 : 15e12);
  const double rate = 6e-6 + 0.33e-6 * steps + products / (bf16 ? 500e12 : 260e12);
  return find_variant(latency < rate ? kLatency : kRate);
}

Plan plan(const AttentionSpec& spec, Dtype dtype, const DeviceInfo& device) {
  return choose(spec, dtype, device).plan(spec, dtype, device);
}

const Variant& chosen_by(const Plan& plan) {
  return find_variant(plan.kernels.size() == 1 ? kLatency : kRate);
}

void launch(const AttentionSpec& spec, Dtype dtype, const Plan& plan, const Arguments& args) {
  chosen_by(plan).launch(spec, dtype, plan, args);
}

std::vector<KernelTrace> trace(const AttentionSpec& spec, Dtype dtype, const Plan& plan) {
  return chosen_by(plan).trace(spec, dtype, plan);
}

const Variant kVariant{
    .ladder = "large_dims",
    .rung = 7,
    .name = "chosen",
    .idea = "one launch where latency decides, two matrix products where rate does: chosen by the shape",
    .finding = "As fast as the better of rungs 5 and 6 on all shapes measured, within 4 %.",
    .limits = {.dtypes = {Dtype::f32, Dtype::bf16},
               .head_dim_max = 8192,
               .causal = true,
               .compute_capability = 90},
    .tolerance = {.f32 = 1e-6},
    .plan = plan,
    .launch = launch,
    .trace = trace};
const VariantRegistration kRegistration(kVariant);
const ChooserRegistration kChooser({kSelf, {kLatency, kRate}});

}  // namespace
}  // namespace splash::gpu
