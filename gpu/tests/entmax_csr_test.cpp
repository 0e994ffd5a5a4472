// The support as a CSR matrix: sorted, complete, and with the double oracle's probabilities.

#include "core/workload.h"
#include "gpu/entmax/support/csr.h"
#include "gpu/tests/entmax_forward_run.h"
#include "gpu/tests/ladder_cases.h"
#include "gpu/tests/skip_without_gpu.h"

using namespace splash;
using namespace splash::gpu;
using namespace splash::gpu::testing;

namespace {

struct HostCsr {
  std::vector<int64_t> offsets;
  std::vector<int32_t> columns;
  std::vector<float> probabilities;
};

HostCsr csr_of(const AttentionSpec& spec, const ForwardRun& run, const Stream& stream) {
  const auto entries = static_cast<int64_t>(run.entries());
  DeviceBuffer offsets(stream, (run.rows + 1) * 8), columns(stream, std::max<int64_t>(entries, 1) * 4),
      probabilities(stream, std::max<int64_t>(entries, 1) * 4),
      workspace(stream, entmax::csr_workspace_bytes(spec, entries));
  for (DeviceBuffer* buffer : {&offsets, &columns, &probabilities, &workspace}) buffer->fill(0xFF);
  entmax::enqueue_csr(spec, static_cast<const float*>(run.alpha.data()), run.support(), entries,
                      {.row_offsets = static_cast<int64_t*>(offsets.data()),
                       .columns = static_cast<int32_t*>(columns.data()),
                       .probabilities = static_cast<float*>(probabilities.data())},
                      workspace.data(), stream.handle());
  return {ForwardRun::host<int64_t>(offsets, run.rows + 1), ForwardRun::host<int32_t>(columns, entries),
          ForwardRun::host<float>(probabilities, entries)};
}

struct CsrCase {
  const char* name;
  AttentionShape shape;
  std::vector<double> alpha;
  bool causal;
  Workload workload;
};

const CsrCase kCases[] = {
    {"gaussian", {2, 2, 1, 300, 300, 64}, {1.5}, true, {.query_variance = 6}},
    {"an alpha a head", {1, 3, 3, 70, 513, 96}, {1.25, 1.5, 2.0}, false, {}},
    {"near-dense", {1, 2, 1, 130, 900, 64}, {1.5}, true, {.query_variance = 0.01}},
    {"sink", {1, 2, 2, 257, 257, 64}, {1.5}, true, {.kind = WorkloadKind::sink}},
    {"rows without keys", {1, 1, 1, 200, 70, 64}, {1.5}, true, {}},
    {"one pair", {1, 1, 1, 1, 1, 8}, {1.5}, false, {}},
};

void check_csr(const CsrCase& c, entmax::ForwardPath path, const Stream& stream) {
  CAPTURE(c.name);
  CAPTURE(static_cast<int>(path));
  AttentionSpec spec;
  spec.shape = c.shape;
  spec.normalizer = {NormalizerKind::entmax, c.alpha};
  spec.mask.causal = c.causal;
  Workload seeded = c.workload;
  seeded.seed = test_seed();
  auto inputs = make_inputs<double>(seeded, spec.shape);
  round_inputs(inputs, Dtype::bf16);
  const ForwardRun run(spec, Dtype::bf16, inputs, spec.shape.rows() * spec.shape.kv_len, stream, path);
  const HostCsr csr = csr_of(spec, run, stream);
  const auto oracle =
      cpu_ref::attention_forward<double>(spec, inputs.q, inputs.k, inputs.v, {.keep_probabilities = true});
  const auto& expected = *oracle.probabilities;
  REQUIRE(csr.offsets.front() == 0);
  REQUIRE(csr.offsets.back() == static_cast<int64_t>(csr.columns.size()));
  int64_t unsorted = 0, wrong_sums = 0, wrong = 0;
  for (int64_t row = 0; row < spec.shape.rows(); ++row) {
    std::map<int32_t, double> left;
    for (int64_t i = expected.row_offsets[row]; i < expected.row_offsets[row + 1]; ++i)
      left[expected.columns[i]] = expected.values[i];
    const bool has_keys = !left.empty();
    double sum = 0;
    for (int64_t i = csr.offsets[row]; i < csr.offsets[row + 1]; ++i) {
      unsorted += i > csr.offsets[row] && csr.columns[i] <= csr.columns[i - 1];
      sum += csr.probabilities[i];
      wrong += !(std::abs(csr.probabilities[i] - left[csr.columns[i]]) <= 2e-4);
      left.erase(csr.columns[i]);
    }
    for (const auto& [key, p] : left) wrong += p > 2e-4;
    wrong_sums += !(std::abs(sum - (has_keys ? 1 : 0)) <= 1e-5);
  }
  CHECK(unsorted == 0);
  CHECK(wrong_sums == 0);
  CHECK(wrong == 0);
}

}  // namespace

TEST_CASE("entmax csr: sorted rows of the double oracle's probabilities, on either path") {
  SKIP_WITHOUT_GPU();
  const Stream stream;
  for (const CsrCase& c : kCases) {
    for (const auto path : {entmax::ForwardPath::fastest, entmax::ForwardPath::portable})
      check_csr(c, path, stream);
  }
}

TEST_CASE("entmax csr: rows that found no room in the store are empty") {
  SKIP_WITHOUT_GPU();
  const Stream stream;
  AttentionSpec spec;
  spec.shape = {1, 2, 2, 200, 200, 64};
  spec.normalizer = {NormalizerKind::entmax, {1.5}};
  const auto inputs = make_inputs<double>({.seed = test_seed()}, spec.shape);
  const ForwardRun run(spec, Dtype::f16, inputs, 1000, stream);
  REQUIRE(run.entries() > 1000);
  const HostCsr csr = csr_of(spec, run, stream);
  const RowResults results = run.row_results();
  for (int64_t row = 0; row < run.rows; ++row) {
    const int64_t stored = results.offsets[row] < 0 ? 0 : results.counts[row];
    CHECK(csr.offsets[row + 1] - csr.offsets[row] == stored);
  }
}

TEST_CASE("entmax csr: a negative number of entries is refused") {
  AttentionSpec spec;
  CHECK_THROWS_AS(entmax::csr_workspace_bytes(spec, -1), InvalidArgument);
}
