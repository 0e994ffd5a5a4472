// Running out of memory gives std::bad_alloc, in whatever place and on whatever thread, and leaves nothing
// broken.

#include <atomic>
#include <cstdlib>
#include <functional>
#include <new>
#include <omp.h>
#include <string>

#include <doctest/doctest.h>

#include "core/workload.h"
#include "cpu_ref/attention/backward.h"
#include "cpu_ref/attention/forward.h"
#include "cpu_ref/attention/naive.h"
#include "cpu_ref/attention/screened.h"
#include "cpu_ref/attention/threshold_predictor.h"
#include "cpu_ref/attention/tile_top_k.h"
#include "cpu_ref/entmax/rows.h"
#include "cpu_ref/tests/attention_test_support.h"

namespace {

// Allocations that still succeed during a sweep. After that all fail, as on a machine without memory.
constexpr int64_t kNoSweep = int64_t{1} << 60;
std::atomic<int64_t> remaining{kNoSweep};

void* allocate(std::size_t bytes) {
  if (remaining.load(std::memory_order_relaxed) < kNoSweep / 2 && remaining.fetch_sub(1) <= 0) return nullptr;
  return std::malloc(bytes > 0 ? bytes : 1);
}

void* allocate_or_throw(std::size_t bytes) {
  void* memory = allocate(bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

void* operator new(std::size_t bytes) {
  return allocate_or_throw(bytes);
}
void* operator new[](std::size_t bytes) {
  return allocate_or_throw(bytes);
}
void* operator new(std::size_t bytes, const std::nothrow_t& /*tag*/) noexcept {
  return allocate(bytes);
}
void* operator new[](std::size_t bytes, const std::nothrow_t& /*tag*/) noexcept {
  return allocate(bytes);
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete[](void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}
void operator delete[](void* memory, std::size_t) noexcept {
  std::free(memory);
}

using namespace splash;
using namespace splash::cpu_ref;

namespace {

struct Problem {
  AttentionShape shape{.batch = 1, .q_heads = 4, .kv_heads = 2, .q_len = 70, .kv_len = 90, .head_dim = 16};
  AttentionInputs<float> floats = test::random_inputs<float>(shape, 1);
  AttentionInputs<double> doubles = test::random_inputs<double>(shape, 1);
  Tensor<float> d_out = test::random_dout<float>(shape, 2);
  Tensor<double> d_out_double = test::random_dout<double>(shape, 2);
  AttentionSpec spec{.shape = shape};
};

// Runs `work` with memory for 0 allocations, then for more and more of them, until it succeeds.
void sweep(const std::string& what, const std::function<void()>& work) {
  CAPTURE(what);
  omp_set_num_threads(2);
  work();  // starts the threads
  int64_t failures = 0;
  for (int64_t allowed = 0; true; allowed += 1 + allowed / 4) {
    CAPTURE(allowed);
    bool refused = false, other = false;
    remaining = allowed;
    try {
      work();
    } catch (const std::bad_alloc&) {
      refused = true;
    } catch (...) {
      other = true;
    }
    remaining = kNoSweep;
    REQUIRE_FALSE(other);
    if (!refused) break;
    ++failures;
  }
  CHECK(failures > 0);
  CHECK_NOTHROW(work());
}

}  // namespace

TEST_CASE("attention that runs out of memory says so, for every normalizer and selection") {
  Problem p;
  const auto& f = p.floats;
  const auto& d = p.doubles;
  for (const Normalizer& normalizer : test::all_normalizers()) {
    if (normalizer.kind == NormalizerKind::entmax && normalizer.alpha.front() == 2.0) continue;  // like 1.5
    for (const Selection& selection : test::all_selections(p.shape)) {
      AttentionSpec spec = p.spec;
      spec.normalizer = normalizer;
      spec.selection = selection;
      const std::string name = test::describe(spec);
      sweep("forward " + name,
            [&] { attention_forward<float>(spec, f.q, f.k, f.v, {.keep_probabilities = true}); });
      sweep("backward " + name, [&] { attention_backward<double>(spec, d.q, d.k, d.v, p.d_out_double); });
    }
  }
  sweep("naive", [&] { naive_forward(p.spec, d); });
}

TEST_CASE("screened attention that runs out of memory says so") {
  Problem p;
  auto& x = p.floats;
  sweep("forward", [&] { screened_forward(p.spec, x.q, x.k, x.v, true); });
  const ScreenedForward forward = screened_forward(p.spec, x.q, x.k, x.v, true);
  sweep("backward", [&] { screened_backward(p.spec, forward, x.q, x.k, x.v, p.d_out); });
  x.k.data()[7] = std::numeric_limits<float>::infinity();
  sweep("forward by the reference", [&] { screened_forward(p.spec, x.q, x.k, x.v, true); });
}

TEST_CASE("learned thresholds, tiles, rows and workloads that run out of memory say so") {
  Problem p;
  const auto& x = p.doubles;
  const ThresholdPredictor predictor(p.shape.q_heads, p.shape.head_dim);
  for (const PredictorMode mode : {PredictorMode::warm_start, PredictorMode::direct}) {
    sweep("predicted forward", [&] { predicted_forward<double>(p.spec, predictor, mode, x.q, x.k, x.v); });
    sweep("predicted backward",
          [&] { predicted_backward<double>(p.spec, predictor, mode, x.q, x.k, x.v, p.d_out_double); });
  }
  AttentionSpec softmax = p.spec;
  softmax.normalizer = {NormalizerKind::softmax, {1.5}};
  sweep("tile_top_k", [&] { tile_top_k(softmax, x.q, x.k); });
  const int64_t rows = 32, n = 50;
  const std::vector<double> scores(x.q.data(), x.q.data() + rows * n);
  std::vector<double> probabilities(scores.size()), d_scores(scores.size()), d_alpha(rows);
  for (const double alpha : {1.3, 1.5, 2.0, 3.0}) {
    const std::vector<double> alphas(rows, alpha);
    const auto gradient = [&] {
      entmax_rows<double>(scores, alphas, rows, probabilities);
      entmax_rows_gradient<double>(probabilities, scores, alphas, rows, d_scores, d_alpha);
      const std::vector<double> result(probabilities);
    };
    sweep("rows", gradient);
  }
  for (const WorkloadKind kind : {WorkloadKind::gaussian, WorkloadKind::clustered, WorkloadKind::local,
                                  WorkloadKind::sink, WorkloadKind::ties}) {
    sweep("workload", [&] { make_inputs<float>({.kind = kind}, p.shape); });
  }
}
