// Every variant of every ladder against the double oracle. SPLASH_TEST_SEED=random draws new inputs.
// ladder_run.h has the settings for runs under sanitizers.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <map>
#include <numeric>
#include <vector>

#include "analysis/error_metrics.h"
#include "cpu_ref/attention/forward.h"
#include "gpu/compute_capability.h"
#include "gpu/engine/attention.h"
#include "gpu/tests/ladder_cases.h"
#include "gpu/tests/ladder_run.h"
#include "gpu/tests/skip_without_gpu.h"

using namespace splash;
using namespace splash::gpu;
using namespace splash::gpu::testing;

namespace {

using Inputs = AttentionInputs<double>;

struct Reference {
  Tensor<double> out;
  double float_nmse = 0;  // the error of the same arithmetic in float: large for huge scores
};

double nmse(const Tensor<double>& out, const Tensor<double>& expected) {
  return analysis::compare_arrays({out.data(), static_cast<size_t>(out.size())},
                                  {expected.data(), static_cast<size_t>(expected.size())})
      .nmse;
}

Inputs rounded_to_tf32(Inputs inputs) {
  for (Tensor<double>* tensor : {&inputs.q, &inputs.k, &inputs.v}) {
    for (int64_t i = 0; i < tensor->size(); ++i) {
      double& x = tensor->data()[i];
      if (!std::isfinite(x)) continue;
      int exponent = 0;
      const double significand = std::frexp(x, &exponent);  // argument order is unspecified
      x = std::ldexp(std::nearbyint(std::ldexp(significand, 11)), exponent - 11);
    }
  }
  return inputs;
}

// Cached, because several variants ask for the same case.
const Reference& reference(const LadderCase& c, const Inputs& inputs) {
  static std::map<std::string, Reference> known;
  const auto found = known.find(c.name);
  if (found != known.end()) return found->second;
  Reference result;
  result.out = cpu_ref::attention_forward<double>(c.spec, inputs.q, inputs.k, inputs.v).out;
  const auto in = inputs.cast<float>();
  result.float_nmse =
      nmse(cpu_ref::attention_forward<float>(c.spec, in.q, in.k, in.v).out.cast<double>(), result.out);
  return known.emplace(c.name, std::move(result)).first->second;
}

// The error that rounding the inputs to tf32 causes.
double tf32_nmse(const LadderCase& c, const Inputs& inputs) {
  const auto in = rounded_to_tf32(inputs);
  return nmse(cpu_ref::attention_forward<double>(c.spec, in.q, in.k, in.v).out, reference(c, inputs).out);
}

// The error that rounding the scores to fp16 causes, with everything else exact.
double half_scores_nmse(const LadderCase& c, const Inputs& inputs) {
  constexpr double kLargest = 65504;
  const AttentionShape& s = c.spec.shape;
  Tensor<double> out = reference(c, inputs).out;
  for (int64_t row = 0; row < s.rows(); ++row) {
    const int64_t b = row / s.q_len / s.q_heads, head = row / s.q_len % s.q_heads, query = row % s.q_len;
    const int64_t kv_head = head / s.group();
    const RowMask mask = c.spec.mask.row(s, b, head, query);
    std::vector<double> scores(static_cast<size_t>(s.kv_len), -std::numeric_limits<double>::infinity());
    double largest = -std::numeric_limits<double>::infinity(), sum = 0;
    for (int64_t key = 0; key < s.kv_len; ++key) {
      if (!mask.visible(key)) continue;
      const double* const q = inputs.q.row(b, head, query);
      const double score =
          c.spec.score_scale() * std::inner_product(q, q + s.head_dim, inputs.k.row(b, kv_head, key), 0.0);
      const double clamped = std::isfinite(score) ? std::clamp(score, -kLargest, kLargest) : score;
      scores[static_cast<size_t>(key)] = round_to(Dtype::f16, clamped);
      largest = std::max(largest, scores[static_cast<size_t>(key)]);
    }
    double* const to = out.row(b, head, query);
    if (std::isnan(to[0]) || largest == -std::numeric_limits<double>::infinity()) continue;  // as the oracle
    std::fill(to, to + s.head_dim, 0.0);
    for (int64_t key = 0; key < s.kv_len; ++key) {
      const double weight = std::exp(scores[static_cast<size_t>(key)] - largest);
      const double* const v = inputs.v.row(b, kv_head, key);
      sum += weight;
      for (int64_t d = 0; weight > 0 && d < s.head_dim; ++d) to[d] += weight * v[d];
    }
    for (int64_t d = 0; d < s.head_dim; ++d) to[d] /= sum;
  }
  return nmse(out, reference(c, inputs).out);
}

// A variant's tolerance assumes scores that float represents well. Scores of 1e4 are only accurate to 1e-3,
// and no float kernel does better. A variant with a wider tolerance (tf32) may err by as much more there, or
// by what its rounding of the inputs makes of scores that are close together.
double bound_of(const Variant& variant, const LadderCase& c, const Inputs& inputs) {
  constexpr double kOfFloat = 1e-11;
  const double tolerance = variant.tolerance.of(c.dtype);
  const double wider = c.dtype == Dtype::f32 ? std::max(1.0, tolerance / kOfFloat) : 1.0;
  // The order of summation: one term after the other loses up to 8 times as much as vectors do, and the float
  // oracle's own error is only one draw (65 times was seen in some thousand draws of huge logits).
  constexpr double kOtherOrder = 128;
  constexpr double kOfTf32 = 2.4e-7;  // 2^-22: no rung with fp32 products has so wide a tolerance
  const double of_inputs = c.dtype == Dtype::f32 && tolerance > kOfTf32 ? 2 * tf32_nmse(c, inputs) : 0;
  // The kernel's sums sometimes round the other way. Errors of both causes may add.
  const double of_scores = variant.tolerance.half_scores ? 4 * half_scores_nmse(c, inputs) : 0;
  return std::max({tolerance, kOtherOrder * wider * reference(c, inputs).float_nmse, of_inputs, of_scores});
}

// Memory that kernels get as workspace or output is NaN in every type, so anything that they do not write
// shows.
void poison_memory_pool(const Stream& stream) {
  DeviceBuffer poison(stream, int64_t{16} << 20);
  poison.fill(0xFF);
}

Tensor<double> run(const PreparedAttention& attention, const DeviceTensor& q, const DeviceTensor& k,
                   const DeviceTensor& v, DeviceTensor& out) {
  out.buffer().fill(0xFF);
  attention.enqueue(q.view(), k.view(), v.view(), out.view());
  return out.to_host();
}

bool same_bits(const Tensor<double>& a, const Tensor<double>& b) {
  return std::equal(a.data(), a.data() + a.size(), b.data(),
                    [](double x, double y) { return x == y || (x != x && y != y); });
}

void check_case(const Variant& variant, const LadderCase& c, const Stream& stream, bool oracle) {
  CAPTURE(c.name);
  poison_memory_pool(stream);
  const Inputs inputs = c.inputs();
  const DeviceTensor q = DeviceTensor::from(stream, c.dtype, inputs.q);
  const DeviceTensor k = DeviceTensor::from(stream, c.dtype, inputs.k);
  const DeviceTensor v = DeviceTensor::from(stream, c.dtype, inputs.v);
  DeviceTensor out(stream, c.dtype, q.view().extents);
  const PreparedAttention attention(variant, c.spec, c.dtype, stream);
  const Tensor<double> first = run(attention, q, k, v, out);
  if (oracle) CHECK(nmse(first, reference(c, inputs).out) <= bound_of(variant, c, inputs));
  CHECK(same_bits(run(attention, q, k, v, out), first));  // also checks that the workspace can be reused
}

void check_ladder(const std::string& ladder) {
  const LadderRun wanted = LadderRun::from_environment();
  const Stream stream;
  const DeviceInfo device = list_devices().at(stream.device());
  for (const Variant* variant : all_variants()) {
    if (variant->ladder != ladder || !wanted.takes(*variant)) continue;
    CAPTURE(variant->id());
    const auto cases = ladder_cases(*variant, device);
    if (cases.empty()) {
      std::printf("%s runs nothing on %s\n", variant->id().c_str(), device.name.c_str());
      CHECK(compute_capability_of(device) != 90);  // every variant has cases there
      continue;
    }
    size_t checked = 0;
    for (size_t i = 0; i < cases.size(); ++i) {
      if (!wanted.takes(static_cast<int64_t>(i), cases[i].spec)) continue;
      check_case(*variant, cases[i], stream, wanted.oracle);
      ++checked;
    }
    std::printf("%s: %zu of %zu cases%s, seed %llu\n", variant->id().c_str(), checked, cases.size(),
                wanted.oracle ? "" : " WITHOUT THE ORACLE, two runs against one another",
                static_cast<unsigned long long>(test_seed()));
    std::fflush(stdout);  // shows the progress of a run that is stopped
  }
}

}  // namespace

// One test case each, named "LADDER: …", for the folders of gpu/ladders and the example, as CMake lists them,
// and for the flagship.
#define SPLASH_LADDER(ladder)                                          \
  TEST_CASE(#ladder ": every variant agrees with the double oracle") { \
    SKIP_WITHOUT_GPU();                                                \
    check_ladder(#ladder);                                             \
  }
#include "ladder_names.inc"
SPLASH_LADDER(entmax)
#undef SPLASH_LADDER

TEST_CASE(
    "kascade: profiled kernels compute what the measured ones do, and find time in each of their phases") {
  SKIP_WITHOUT_GPU();
  const LadderRun wanted = LadderRun::from_environment();
  const Stream stream;
  const DeviceInfo device = list_devices().at(stream.device());
  for (const Variant* variant : all_variants()) {
    if (variant->profile.phases.empty() || !wanted.takes(*variant)) continue;
    CAPTURE(variant->id());
    std::vector<uint64_t> all(variant->profile.phases.size());
    for (const LadderCase& c : ladder_cases(*variant, device)) {
      CAPTURE(c.name);
      const Inputs inputs = c.inputs();
      const DeviceTensor q = DeviceTensor::from(stream, c.dtype, inputs.q);
      const DeviceTensor k = DeviceTensor::from(stream, c.dtype, inputs.k);
      const DeviceTensor v = DeviceTensor::from(stream, c.dtype, inputs.v);
      DeviceTensor out(stream, c.dtype, q.view().extents);
      const PreparedAttention attention(*variant, c.spec, c.dtype, stream);
      const Tensor<double> expected = run(attention, q, k, v, out);
      out.buffer().fill(0xFF);
      const auto cycles = attention.profile(q.view(), k.view(), v.view(), out.view());
      REQUIRE(cycles.size() == all.size());
      CHECK(nmse(out.to_host(), expected) <= variant->tolerance.of(c.dtype));
      for (size_t i = 0; i < all.size(); ++i) all[i] += cycles[i];
    }
    for (size_t i = 0; i < all.size(); ++i) {
      CAPTURE(variant->profile.phases[i]);
      const bool without = variant->rung == 2 && variant->profile.phases[i].starts_with("broadcasts");
      CHECK((all[i] > 0) == !without);
    }
  }
}
