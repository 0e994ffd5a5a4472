// What the flagship's forward leaves beside its output: tau, the support, sums. (Its output over shapes,
// masks and nasty inputs is the business of ladder_test, as for every variant.)

#include <cmath>
#include <cstring>
#include <map>

#include <fmt/format.h>

#include "core/workload.h"
#include "cpu_ref/attention/forward.h"
#include "gpu/engine/tensor.h"
#include "gpu/entmax/forward.h"
#include "gpu/tests/ladder_cases.h"
#include "gpu/tests/skip_without_gpu.h"

using namespace splash;
using namespace splash::gpu;
using namespace splash::gpu::testing;

namespace {

// What a launch needs and leaves, in device memory and as host vectors.
struct Run {
  Run(const AttentionSpec& spec, Dtype dtype, const AttentionInputs<double>& inputs, int64_t capacity,
      const Stream& stream)
      : q(DeviceTensor::from(stream, dtype, inputs.q)),
        k(DeviceTensor::from(stream, dtype, inputs.k)),
        v(DeviceTensor::from(stream, dtype, inputs.v)),
        out(stream, dtype, q.view().extents),
        rows(spec.shape.rows()),
        room(capacity),
        alpha(stream, static_cast<int64_t>(spec.normalizer.alpha.size() * sizeof(float))),
        tau(stream, rows * 4),
        used(stream, 8),
        offsets(stream, rows * 8),
        counts(stream, rows * 4),
        columns(stream, capacity * 4),
        excess(stream, capacity * 4),
        workspace(stream, entmax::forward_workspace_bytes(spec, dtype)) {
    const std::vector<float> alphas(spec.normalizer.alpha.begin(), spec.normalizer.alpha.end());
    alpha.upload(alphas.data(), alpha.bytes());
    for (DeviceBuffer* buffer : {&out.buffer(), &tau, &offsets, &counts, &columns, &excess, &workspace})
      buffer->fill(0xFF);
    used.fill(0);
    entmax::enqueue_forward(spec, dtype,
                            {.q = q.view().data,
                             .k = k.view().data,
                             .v = v.view().data,
                             .out = out.view().data,
                             .alpha = static_cast<const float*>(alpha.data()),
                             .tau = static_cast<float*>(tau.data()),
                             .support = {.capacity = capacity,
                                         .used = static_cast<unsigned long long*>(used.data()),
                                         .offsets = static_cast<int64_t*>(offsets.data()),
                                         .counts = static_cast<int32_t*>(counts.data()),
                                         .columns = static_cast<int32_t*>(columns.data()),
                                         .excess = static_cast<float*>(excess.data())},
                             .workspace = workspace.data(),
                             .stream = stream.handle()});
    stream.synchronize();
  }

  template <class T>
  static std::vector<T> host(const DeviceBuffer& buffer, int64_t count) {
    std::vector<T> values(static_cast<size_t>(count));
    buffer.download(values.data(), count * static_cast<int64_t>(sizeof(T)));
    return values;
  }

  DeviceTensor q, k, v, out;
  int64_t rows, room;
  DeviceBuffer alpha, tau, used, offsets, counts, columns, excess, workspace;
};

struct Problem {
  const char* name;
  AttentionSpec spec;
  Workload workload;
};

std::vector<Problem> problems() {
  const auto spec = [](AttentionShape shape, double alpha, bool causal) {
    AttentionSpec s;
    s.shape = shape;
    s.normalizer = {NormalizerKind::entmax, {alpha}};
    s.mask.causal = causal;
    return s;
  };
  return {
      {"gaussian", spec({1, 2, 2, 300, 300, 64}, 1.5, true), {}},
      {"gaussian, many keys", spec({1, 2, 1, 140, 1500, 64}, 1.5, false), {.query_variance = 25}},
      {"broad", spec({1, 1, 1, 130, 700, 128}, 1.5, false), {.query_variance = 1}},
      {"near-dense", spec({1, 1, 1, 130, 400, 64}, 1.5, false), {.query_variance = 0.01}},
      {"alpha 2", spec({2, 1, 1, 65, 513, 96}, 2.0, false), {}},
      {"alpha 1.2", spec({1, 2, 2, 129, 257, 32}, 1.2, true), {}},
      {"ties", spec({1, 1, 1, 70, 900, 64}, 1.5, false), {.kind = WorkloadKind::ties}},
      {"sink", spec({1, 2, 2, 257, 257, 64}, 1.5, true), {.kind = WorkloadKind::sink}},
      {"wide heads", spec({1, 1, 1, 129, 300, 256}, 1.5, true), {}},
      {"rows without keys", spec({1, 1, 1, 200, 70, 64}, 1.5, true), {}},
  };
}

AttentionInputs<double> inputs_of(const Problem& problem, Dtype dtype) {
  Workload seeded = problem.workload;
  seeded.seed = test_seed();
  auto inputs = make_inputs<double>(seeded, problem.spec.shape);
  for (Tensor<double>* tensor : {&inputs.q, &inputs.k, &inputs.v}) {
    for (int64_t i = 0; i < tensor->size(); ++i) tensor->data()[i] = round_to(dtype, tensor->data()[i]);
  }
  return inputs;
}

// Scores are sums of head_dim products in float32, in the order of the tensor cores: an error of a few units
// in the last place of the largest partial sum. In z, for the inputs above:
constexpr double kScoreError = 2e-5;

void check_support(const Problem& problem, Dtype dtype, const Stream& stream) {
  CAPTURE(problem.name);
  CAPTURE(to_string(dtype));
  const AttentionSpec& spec = problem.spec;
  const auto inputs = inputs_of(problem, dtype);
  const auto oracle =
      cpu_ref::attention_forward<double>(spec, inputs.q, inputs.k, inputs.v, {.keep_probabilities = true});
  const Run run(spec, dtype, inputs, spec.shape.rows() * spec.shape.kv_len, stream);
  const auto tau = Run::host<float>(run.tau, run.rows);
  const auto offsets = Run::host<int64_t>(run.offsets, run.rows);
  const auto counts = Run::host<int32_t>(run.counts, run.rows);
  const auto columns = Run::host<int32_t>(run.columns, run.room);
  const auto excess = Run::host<float>(run.excess, run.room);
  const double alpha = spec.normalizer.alpha.front(), beta = 1 / (alpha - 1);

  int64_t stored = 0, wrong_tau = 0, wrong_sums = 0, wrong_entries = 0;
  for (int64_t row = 0; row < run.rows; ++row) {
    stored += counts[row];
    const bool empty = std::isinf(oracle.tau[row]);
    wrong_tau += empty ? !std::isinf(tau[row]) : !(std::abs(tau[row] - oracle.tau[row]) <= kScoreError);
    std::map<int32_t, double> expected;
    const auto& p = *oracle.probabilities;
    for (int64_t i = p.row_offsets[row]; i < p.row_offsets[row + 1]; ++i)
      expected[p.columns[i]] = std::pow(p.values[i], alpha - 1);
    double sum = empty ? 1 : 0;
    for (int64_t i = offsets[row]; i < offsets[row] + counts[row]; ++i) {
      sum += std::pow(excess[i], beta);
      const auto found = expected.find(columns[i]);
      wrong_entries += std::abs(excess[i] - (found == expected.end() ? 0 : found->second)) > 2 * kScoreError;
      if (found != expected.end()) expected.erase(found);
    }
    for (const auto& [key, missing] : expected) wrong_entries += missing > 2 * kScoreError;
    wrong_sums += !(std::abs(sum - 1) <= 1e-5);
  }
  CHECK(wrong_tau == 0);
  CHECK(wrong_sums == 0);
  CHECK(wrong_entries == 0);
  CHECK(stored == static_cast<int64_t>(Run::host<unsigned long long>(run.used, 1).front()));
}

}  // namespace

TEST_CASE("entmax forward: tau, sums and support are the double oracle's") {
  SKIP_WITHOUT_GPU();
  const Stream stream;
  for (const Problem& problem : problems()) {
    for (const Dtype dtype : {Dtype::bf16, Dtype::f16}) check_support(problem, dtype, stream);
  }
}

TEST_CASE("entmax forward: a support that does not fit is counted, never cut, and the output stays right") {
  SKIP_WITHOUT_GPU();
  const Stream stream;
  const Problem problem = problems().front();
  const auto inputs = inputs_of(problem, Dtype::bf16);
  const Run whole(problem.spec, Dtype::bf16, inputs, 1 << 20, stream);
  const Run small(problem.spec, Dtype::bf16, inputs, 500, stream);
  CHECK(Run::host<unsigned long long>(small.used, 1) == Run::host<unsigned long long>(whole.used, 1));
  const auto counts = Run::host<int32_t>(small.counts, small.rows);
  CHECK(counts == Run::host<int32_t>(whole.counts, whole.rows));
  const auto offsets = Run::host<int64_t>(small.offsets, small.rows);
  int64_t left_out = 0;
  for (int64_t row = 0; row < small.rows; ++row) {
    left_out += offsets[row] < 0;
    CHECK(offsets[row] + (offsets[row] < 0 ? 0 : counts[row]) <= 500);
  }
  CHECK(left_out > 0);
  CHECK(left_out < small.rows);
  const Tensor<double> a = small.out.to_host(), b = whole.out.to_host();
  CHECK(std::memcmp(a.data(), b.data(), static_cast<size_t>(a.size()) * sizeof(double)) == 0);
}

TEST_CASE("entmax forward: every run gives the same bits") {
  SKIP_WITHOUT_GPU();
  const Stream stream;
  const Problem problem = problems()[2];
  const auto inputs = inputs_of(problem, Dtype::bf16);
  const Run first(problem.spec, Dtype::bf16, inputs, 1 << 18, stream);
  const Tensor<double> expected = first.out.to_host();
  const auto tau = Run::host<float>(first.tau, first.rows);
  for (int i = 0; i < 50; ++i) {
    const Run again(problem.spec, Dtype::bf16, inputs, 1 << 18, stream);
    const Tensor<double> out = again.out.to_host();
    REQUIRE(std::memcmp(out.data(), expected.data(), static_cast<size_t>(out.size()) * sizeof(double)) == 0);
    REQUIRE(Run::host<float>(again.tau, again.rows) == tau);
  }
}
