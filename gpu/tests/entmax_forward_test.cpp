// What the flagship's forward writes besides its output: tau, the support, sums. (ladder_test checks its
// output over shapes, masks and difficult inputs, as for every variant.)

#include <cstring>

#include "core/workload.h"
#include "gpu/entmax/hopper/forward.h"
#include "gpu/tests/entmax_attention_scan.h"
#include "gpu/tests/entmax_portable_case.h"
#include "gpu/tests/entmax_weak_bounds.h"
#include "gpu/tests/ladder_cases.h"
#include "gpu/tests/nmse.h"
#include "gpu/tests/skip_without_gpu.h"

using namespace splash;
using namespace splash::gpu;
using namespace splash::gpu::testing;

namespace {

struct Problem {
  const char* name;
  AttentionSpec spec;
  Workload workload;
  int64_t nan_in_key = -1;
  bool hollow = false;  // keys are large in dimensions in which queries are 0
};

AttentionSpec spec(const AttentionShape& shape, double alpha, bool causal) {
  AttentionSpec s;
  s.shape = shape;
  s.normalizer = {NormalizerKind::entmax, {alpha}};
  s.mask.causal = causal;
  return s;
}

std::vector<Problem> problems() {
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
      {"huge logits", spec({1, 2, 1, 140, 1500, 64}, 1.5, false), {.query_variance = 1e8}},
      {"huge logits, alpha 2", spec({1, 2, 1, 140, 1500, 96}, 2, false), {.query_variance = 1e8}},
      {"NaN in a key among others", spec({1, 1, 1, 140, 1500, 64}, 1.5, false), {.query_variance = 6}, 700},
      // So many keys that some are picked by their norms.
      {"picked keys", spec({1, 2, 1, 140, 5000, 64}, 1.5, false), {.query_variance = 6}},
      {"picked keys, causal", spec({2, 1, 1, 300, 9000, 128}, 1.5, true), {.query_variance = 6}},
      {"picked keys from the first query on",
       spec({1, 1, 1, 5300, 5300, 64}, 1.5, true),
       {.query_variance = 25}},
      {"picked keys, broad", spec({1, 1, 1, 140, 5000, 96}, 1.5, false), {.query_variance = 0.8}},
      {"picked keys, wide heads", spec({1, 1, 1, 70, 4500, 192}, 1.75, false), {.query_variance = 6}},
      {"picked keys, ties", spec({1, 1, 1, 140, 5000, 64}, 1.5, false), {.kind = WorkloadKind::ties}},
      {"picked keys, sink", spec({1, 1, 1, 140, 20000, 64}, 2, false), {.kind = WorkloadKind::sink}},
      {"picked keys, NaN in one", spec({1, 1, 1, 140, 5000, 64}, 1.5, false), {.query_variance = 6}, 4700},
      {"norms that tell nothing",
       spec({1, 1, 1, 140, 9000, 64}, 1.5, false),
       {.query_variance = 12},
       -1,
       true},
  };
}

AttentionInputs<double> inputs_of(const Problem& problem, Dtype dtype) {
  Workload seeded = problem.workload;
  seeded.seed = test_seed();
  auto inputs = make_inputs<double>(seeded, problem.spec.shape);
  if (problem.nan_in_key >= 0)
    inputs.k.row(0, 0, problem.nan_in_key)[1] = std::numeric_limits<double>::quiet_NaN();
  if (problem.hollow) {
    const int64_t half = inputs.q.dim() / 2;
    for (int64_t i = 0; i < inputs.q.size(); ++i) inputs.q.data()[i] *= i % (2 * half) < half ? 0 : 1;
    for (int64_t i = 0; i < inputs.k.size(); ++i)
      inputs.k.data()[i] *= i % (2 * half) < half && i / (2 * half) % 2 == 0 ? 8 : 1;
  }
  round_inputs(inputs, dtype);
  return inputs;
}

// Scores are sums of head_dim products in float32, in the tensor cores' order. They err by a few units in the
// last place of the largest partial sum. In z, for the inputs above except huge logits:
constexpr double kScoreError = 2e-5;

void check_support(const Problem& problem, Dtype dtype, const Stream& stream) {
  CAPTURE(std::string(problem.name));
  CAPTURE(to_string(dtype));
  const AttentionSpec& spec = problem.spec;
  const auto inputs = inputs_of(problem, dtype);
  const auto oracle =
      cpu_ref::attention_forward<double>(spec, inputs.q, inputs.k, inputs.v, {.keep_probabilities = true});
  const ForwardRun run(spec, dtype, inputs, spec.shape.rows() * spec.shape.kv_len, stream);
  const bool huge = problem.workload.query_variance > 1e6;
  check_rows(spec, run.row_results(), oracle, huge ? score_error(oracle) : kScoreError);
}

// Rows of each head that were left to the dense path.
std::vector<int32_t> rows_left(const ForwardRun& run, const AttentionSpec& spec,
                               const entmax::Tuning& tuning = {}, Dtype dtype = Dtype::bf16) {
  const entmax::hopper::HopperWorkspace parts(spec, dtype, tuning);
  const auto workspace = ForwardRun::host<char>(run.workspace, run.workspace.bytes());
  std::vector<int32_t> counts(static_cast<size_t>(spec.shape.batch * spec.shape.q_heads));
  std::memcpy(counts.data(), &workspace[static_cast<size_t>(parts.counts)], counts.size() * sizeof(int32_t));
  return counts;
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
  check_small_store(problem.spec, Dtype::bf16, inputs, 500, stream, entmax::ForwardPath::fastest);
}

TEST_CASE("entmax forward: rows with broad supports are left to the dense path, and only those") {
  SKIP_WITHOUT_GPU();
  const Stream stream;
  const int64_t q_len = 300;  // the last block is not full
  struct Case {
    double query_variance = 0;
    int64_t heads = 0, kv_len = 0, head_dim = 0, left = 0;
    int sampled_keys = 4096;
  };
  // Gaussian scores with some 14 keys per row, and with some 100; and among so many keys that lists of few
  // samples would outgrow their memory (sampled_keys of problem.h), or with the samples of which one row in
  // ten outgrows 128 tiles a lane (HopperWorkspace).
  for (const Case& c : {Case{2, 2, 4096, 64, 0},
                        {2, 2, 4096, 128, 0},
                        {0.15, 2, 4096, 64, q_len},
                        {0.15, 2, 4096, 128, q_len},
                        {6, 1, 1 << 19, 64, 0},
                        {6, 1, 1 << 17, 64, 0, 2048}}) {
    CAPTURE(c.query_variance);
    CAPTURE(c.head_dim);
    const Problem problem{"",
                          spec({1, c.heads, c.heads, q_len, c.kv_len, c.head_dim}, 1.5, false),
                          {.query_variance = c.query_variance}};
    const entmax::Tuning tuning{.sampled_keys = c.sampled_keys};
    const ForwardRun run(problem.spec, Dtype::bf16, inputs_of(problem, Dtype::bf16), 1 << 18, stream,
                         entmax::ForwardPath::fastest, {}, tuning);
    for (const int count : rows_left(run, problem.spec, tuning)) CHECK(count == c.left);
  }
}

TEST_CASE("entmax forward: weakly bound rows, whose lists do not fit, are finished like others") {
  SKIP_WITHOUT_GPU();
  const Stream stream;
  struct Case {
    double alpha = 1.5;
    WeakBounds weak{};
    int64_t dim = 64, keys = 4219, window = 0;
  };
  for (const Case& c : {Case{1.5, {}, 64, 4219},
                        {1.5, {.ties = true}, 64, 4219},
                        {1.5, {}, 128, 4219},
                        {1.5, {}, 256, 4219},
                        {2, {.scale = 0.7}, 40, 4219},
                        {1.25, {.scale = 2}, 64, 4219},
                        {1.5, {}, 64, 4219, 4100},
                        {1.5, {.row_scale = 0.15}, 64, 7999}}) {
    CAPTURE(c.alpha);
    CAPTURE(c.dim);
    CAPTURE(c.keys);
    AttentionSpec weak = spec({1, 1, 1, 150, c.keys, c.dim}, c.alpha, c.window > 0);
    weak.mask.window = c.window;
    for (const Dtype dtype : {Dtype::bf16, Dtype::f16}) {
      CAPTURE(to_string(dtype));
      const auto inputs = weak_bounds_inputs(weak.shape, dtype, c.weak);
      const auto oracle = cpu_ref::attention_forward<double>(weak, inputs.q, inputs.k, inputs.v,
                                                             {.keep_probabilities = true});
      const ForwardRun run(weak, dtype, inputs, 1 << 18, stream);
      check_rows(weak, run.row_results(), oracle, kScoreError);
      CHECK(nmse(run.out.to_host(), oracle.out) <= Tolerance().of(dtype));
      for (const int count : rows_left(run, weak, {}, dtype)) CHECK(count == 0);
    }
  }
}

TEST_CASE("entmax forward: rows keep their k_keep largest scores, in lists and where supports are broad") {
  SKIP_WITHOUT_GPU();
  const Stream stream;
  const auto check = [&](const AttentionShape& shape, bool causal, Dtype dtype, WorkloadKind kind,
                         double variance, int64_t k_keep) {
    CAPTURE(variance);
    CAPTURE(k_keep);
    PortableCase c{.name = "k_keep", .spec = spec(shape, 1.5, causal), .dtype = dtype};
    c.spec.selection = {.kind = SelectionKind::top_k_row, .k_keep = k_keep};
    c.inputs = make_inputs<double>({.kind = kind, .seed = test_seed(), .query_variance = variance}, shape);
    round_inputs(c.inputs, dtype);
    const ForwardRun run(c.spec, dtype, c.inputs, shape.rows() * k_keep, stream, entmax::ForwardPath::hopper);
    check_against_oracle(c, run.out.to_host(), run.row_results());
  };
  for (const Dtype dtype : {Dtype::bf16, Dtype::f16}) {
    for (const WorkloadKind kind : {WorkloadKind::gaussian, WorkloadKind::ties, WorkloadKind::sink}) {
      for (const double variance : {6.0, 0.3, 0.02}) {
        for (const int64_t k_keep : {1, 8, 64, 300})
          check({1, 4, 2, 150, 1300, 64}, k_keep % 3 == 0, dtype, kind, variance, k_keep);
      }
    }
    for (const int64_t head_dim : {40, 128, 256})
      check({1, 2, 1, 140, 5000, head_dim}, false, dtype, WorkloadKind::gaussian, 1, 32);
  }
}

TEST_CASE("entmax forward: 300 problems in which its features meet, against the double oracle") {
  SKIP_WITHOUT_GPU();
  const Stream stream;
  CaseDrawer drawer(test_seed() + 3);
  for (int i = 0; i < 300; ++i) {
    const PortableCase c = i % 3 == 0   ? drawer.draw_few_keys()
                           : i % 3 == 1 ? drawer.draw_for_one_pass()
                                        : drawer.draw_ranges();
    const ForwardRun run(c.spec, c.dtype, c.inputs, c.spec.shape.rows() * c.spec.shape.kv_len, stream,
                         entmax::ForwardPath::hopper);
    check_against_oracle(c, run.out.to_host(), run.row_results());
  }
}

TEST_CASE("entmax forward: every run gives the same bits") {
  SKIP_WITHOUT_GPU();
  const Stream stream;
  const auto check = [&](const AttentionSpec& spec, const AttentionInputs<double>& inputs) {
    const auto expected = ForwardRun(spec, Dtype::bf16, inputs, 1 << 18, stream).bytes();
    for (int i = 0; i < 50; ++i)
      REQUIRE(ForwardRun(spec, Dtype::bf16, inputs, 1 << 18, stream).bytes() == expected);
  };
  const Problem problem = problems()[2];
  check(problem.spec, inputs_of(problem, Dtype::bf16));
  const AttentionSpec weak = spec({1, 1, 1, 150, 4219, 64}, 1.5, false);
  check(weak, weak_bounds_inputs(weak.shape, Dtype::bf16, {}));
}

TEST_CASE("entmax forward: p, its sum, the support and the output at every alpha, lists and dense") {
  SKIP_WITHOUT_GPU();
  const Stream stream;
  const auto scan = [&](Pattern pattern, int64_t n, Dtype dtype) {
    const PortableCase c = scan_case(pattern, n, dtype);
    const ForwardRun run(c.spec, c.dtype, c.inputs, c.spec.shape.rows() * n, stream);
    check_scan(c, run.out.to_host(), run.row_results());
  };
  for (const Dtype dtype : {Dtype::f16, Dtype::bf16}) {
    for (const Pattern pattern : kPatterns) {
      for (const int64_t n : {1, 2, 3, 64, 300, 1000, 8192, 20000}) scan(pattern, n, dtype);
    }
    for (const Pattern pattern : {Pattern::equal, Pattern::near_equal, Pattern::far_above, Pattern::ramp})
      scan(pattern, 200000, dtype);
  }
}
