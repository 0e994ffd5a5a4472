// Steps of decode that are to be timed, on a GPU: they compute what the double oracle says of the keys that
// they hold.

#include <algorithm>
#include <cmath>

#include <doctest/doctest.h>

#include "core/error.h"
#include "core/workload.h"
#include "cpu_ref/decode/decode.h"
#include "gpu/decode/benchmark/steps.h"
#include "gpu/tests/skip_without_gpu.h"

using namespace splash;
using namespace splash::gpu;

namespace {

void check_head(const decode::Steps& steps, const decode::StepProblem& problem, int64_t sequence,
                int64_t kv_head) {
  const AttentionShape& s = problem.shape;
  const auto [k, v] = steps.head(sequence, kv_head);
  cpu_ref::PagedCache cache{.page_size = k.length(), .head_dim = s.head_dim};
  cache.keys.assign(k.data(), k.data() + k.size());
  cache.values.assign(v.data(), v.data() + v.size());
  cache.table = {0};
  cache.lengths = {static_cast<int32_t>(k.length())};
  const int64_t rows = s.group() * s.q_len, first = (sequence * s.kv_heads + kv_head) * rows;
  const Tensor<double> all = steps.queries();
  Tensor<double> q(1, s.group(), s.q_len, s.head_dim);
  std::copy_n(all.data() + first * s.head_dim, q.size(), q.data());
  const auto expected = cpu_ref::decode(cache, {q, {problem.alpha}, {static_cast<float>(problem.scale)}});
  const decode::StepResults results = steps.results();
  for (int64_t row = 0; row < rows; ++row) {
    const auto at = static_cast<size_t>(row);
    CHECK(results.support[static_cast<size_t>(first) + at] == expected.support[at]);
    CHECK(std::abs(results.tau[static_cast<size_t>(first) + at] - expected.tau[at]) < 1e-4);
    for (int64_t d = 0; d < s.head_dim; ++d)
      CHECK(std::abs(results.out.data()[(first + row) * s.head_dim + d] -
                     expected.out.data()[row * s.head_dim + d]) < 0.02);
  }
}

}  // namespace

TEST_CASE("decode steps: each cache in turn, Gaussian keys in scattered pages") {
  SKIP_WITHOUT_GPU();
  const Stream stream;
  for (const int kind : {0, 4, 8, -1}) {  // -1: float8
    const bool fp8 = kind < 0;
    const int bits = std::max(kind, 0);
    CAPTURE(kind);
    const decode::StepProblem problem{
        .shape = {.batch = 3, .q_heads = 8, .kv_heads = 2, .q_len = 2, .kv_len = 1500, .head_dim = 64},
        .bits = bits,
        .scale = 0.125,
        .fp8 = fp8};
    decode::Steps steps(problem, stream);
    CHECK(steps.caches() > 1);
    steps.poison();
    steps.enqueue_round();
    steps.enqueue(0);
    check_head(steps, problem, 0, 1);
    check_head(steps, problem, 2, 0);
    for (const auto& [kernel, seconds] : steps.kernel_seconds(3)) CHECK(seconds > 0);
  }
}

TEST_CASE("decode steps: given keys, one head for all, each sequence with its length") {
  SKIP_WITHOUT_GPU();
  const Stream stream;
  const decode::StepProblem problem{
      .shape = {.batch = 2, .q_heads = 6, .kv_heads = 2, .q_len = 1, .kv_len = 700, .head_dim = 64},
      .scale = 0.125};
  const auto held = make_inputs<float>(
      {.seed = 4}, {.q_heads = 6, .kv_heads = 1, .q_len = 2, .kv_len = 700, .head_dim = 64});
  decode::GivenTensors given{
      Tensor<float>(2, 6, 1, 64), Tensor<float>(2, 6, 1, 64), held.k, held.v, {700, 650}};
  std::copy_n(held.q.data(), given.q.size(), given.q.data());
  std::reverse_copy(held.q.data(), held.q.data() + given.q.size(), given.q_before.data());
  decode::Steps steps(problem, stream, &given);
  steps.enqueue_before(0);
  steps.poison();
  steps.enqueue(0);
  const auto [k, v] = steps.head(1, 1);
  REQUIRE(k.length() == 650);
  for (int64_t i = 0; i < k.size(); ++i)
    CHECK(k.data()[i] == round_to(Dtype::bf16, static_cast<double>(held.k.data()[i])));
  check_head(steps, problem, 0, 0);
  check_head(steps, problem, 1, 1);
  given.lengths.pop_back();
  CHECK_THROWS_AS(decode::Steps(problem, stream, &given), InvalidArgument);
}
