// The dense path by itself, on rows that the test marks as crowded: output, tau and support against the
// double oracle, on random and difficult inputs. Its timing is skipped unless asked for: --no-skip
// -tc="*time*".

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <random>

#include <fmt/format.h>

#include "core/workload.h"
#include "cpu_ref/attention/forward.h"
#include "gpu/tests/entmax_dense_run.h"
#include "gpu/tests/ladder_cases.h"
#include "gpu/tests/skip_without_gpu.h"

using namespace splash;
using namespace splash::gpu;
using namespace splash::gpu::testing;

namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

using Inputs = AttentionInputs<double>;

bool every_row(int64_t) {
  return true;
}

struct Problem {
  const char* name;
  AttentionSpec spec;
  Workload workload;
  std::function<void(Inputs&)> spoil{};
  double score_error = 2e-5;  // in z: the effect of the order of float32 sums on scores
};

AttentionSpec spec_of(AttentionShape shape, double alpha, bool causal) {
  AttentionSpec s;
  s.shape = shape;
  s.normalizer = {NormalizerKind::entmax, {alpha}};
  s.mask.causal = causal;
  return s;
}

void for_each_row(Tensor<double>& tensor, const std::function<void(double* row, int64_t index)>& use) {
  for (int64_t i = 0; i < tensor.size() / tensor.dim(); ++i) use(tensor.data() + i * tensor.dim(), i);
}

// Makes all scores of a row equal: queries become (query, 0, ...) and keys (key, 0, ...).
void make_equal(Inputs& inputs, double query, double key) {
  const auto first_only = [](double value) {
    return [value](double* row, int64_t) {
      std::fill(row, row + 64, 0.0);
      row[0] = value;
    };
  };
  for_each_row(inputs.q, first_only(query));
  for_each_row(inputs.k, first_only(key));
}

std::vector<Problem> problems() {
  const auto spec = spec_of;
  const Workload near_dense{.query_variance = 0.01}, nearer{.query_variance = 0.0001};
  return {
      {"near-dense", spec({1, 2, 2, 300, 300, 64}, 1.5, true), near_dense},
      {"near-dense, many keys", spec({1, 2, 1, 140, 9000, 64}, 1.5, false), near_dense},
      {"near-dense, causal", spec({1, 1, 1, 1500, 1500, 64}, 1.5, true), near_dense},
      {"nearly uniform", spec({1, 1, 1, 130, 3000, 128}, 1.5, false), nearer},
      {"broad", spec({1, 1, 1, 130, 700, 128}, 1.5, false), {.query_variance = 1}},
      {"gaussian", spec({2, 2, 2, 200, 400, 64}, 1.5, true), {}},
      {"gaussian, many keys", spec({1, 2, 1, 140, 1500, 64}, 1.5, false), {.query_variance = 25}},
      {"alpha 2", spec({2, 1, 1, 65, 1513, 96}, 2.0, false), near_dense},
      {"alpha 2, gaussian", spec({2, 1, 1, 65, 513, 40}, 2.0, true), {}},
      {"alpha 1.2", spec({1, 2, 2, 129, 257, 32}, 1.2, true), near_dense},
      {"alpha 1.7", spec({1, 1, 1, 129, 2500, 64}, 1.7, true), near_dense},
      {"ties", spec({1, 1, 1, 70, 2900, 64}, 1.5, false), {.kind = WorkloadKind::ties}},
      {"sink", spec({1, 2, 2, 257, 257, 64}, 1.5, true), {.kind = WorkloadKind::sink}},
      {"sink, many keys", spec({1, 1, 1, 140, 9000, 64}, 1.5, false), {.kind = WorkloadKind::sink, .gap = 4}},
      {"192 dimensions", spec({1, 1, 1, 129, 700, 192}, 1.5, true), near_dense},
      {"256 dimensions", spec({1, 1, 1, 129, 700, 256}, 1.5, true), near_dense},
      {"8 dimensions", spec({1, 4, 2, 129, 300, 8}, 1.5, true), near_dense},
      {"rows without keys", spec({1, 1, 1, 200, 70, 64}, 1.5, true), near_dense},
      {"one key", spec({1, 1, 1, 5, 1, 64}, 1.5, false), {}},
      {"equal scores",
       spec({1, 1, 1, 70, 1000, 64}, 1.5, true),
       {},
       [](Inputs& inputs) { make_equal(inputs, 1, 8); }},
      {"equal, huge scores",
       spec({1, 1, 1, 70, 1000, 64}, 1.5, true),
       {},
       [](Inputs& inputs) { make_equal(inputs, 1e15, 1e15); },
       1e23},
      {"no positive score", spec({1, 1, 1, 200, 600, 64}, 1.5, true), near_dense,
       [](Inputs& inputs) {
         for_each_row(inputs.q, [](double* row, int64_t) { row[0] = -4; });
         for_each_row(inputs.k, [](double* row, int64_t) { row[0] = 4; });
       }},
      {"huge logits", spec({1, 1, 1, 70, 130, 64}, 1.5, false), {.query_variance = 1e8}, nullptr, 2e-2},
      {"some scores -inf", spec({1, 1, 1, 70, 300, 64}, 1.5, false), near_dense,
       [](Inputs& inputs) {
         for_each_row(inputs.q, [](double* row, int64_t) { row[0] = 1; });
         for_each_row(inputs.k, [](double* row, int64_t i) { row[0] = i % 7 == 3 ? -kInf : row[0]; });
       }},
      {"all scores -inf", spec({1, 1, 1, 70, 300, 64}, 1.5, false), near_dense,
       [](Inputs& inputs) {
         for_each_row(inputs.q, [](double* row, int64_t) { row[0] = 1; });
         for_each_row(inputs.k, [](double* row, int64_t) { row[0] = -kInf; });
       }},
      {"NaN in a query, +inf in another", spec({1, 1, 1, 70, 300, 64}, 1.5, true), near_dense,
       [](Inputs& inputs) {
         inputs.q.row(0, 0, 30)[1] = kNan;
         inputs.q.row(0, 0, 50)[0] = kInf;
         for_each_row(inputs.k, [](double* row, int64_t) { row[0] = 1; });
       }},
      {"NaN in a key that all rows see", spec({1, 1, 1, 70, 300, 64}, 1.5, false), near_dense,
       [](Inputs& inputs) { inputs.k.row(0, 0, 290)[1] = kNan; }},
      {"NaN in a late key and value", spec({1, 1, 1, 300, 300, 64}, 1.5, true), near_dense,
       [](Inputs& inputs) {
         inputs.k.row(0, 0, 290)[1] = kNan;
         inputs.v.row(0, 0, 290)[1] = kNan;
         inputs.v.row(0, 0, 200)[5] = kInf;
       }},
  };
}

Inputs inputs_of(const Problem& problem, Dtype dtype) {
  Workload seeded = problem.workload;
  seeded.seed = test_seed();
  auto inputs = make_inputs<double>(seeded, problem.spec.shape);
  if (problem.spoil) problem.spoil(inputs);
  round_inputs(inputs, dtype);
  return inputs;
}

struct Worst {
  double tau = 0, sum = 0, entry = 0, out = 0;
};

void check(const Problem& problem, Dtype dtype, const Marked& marked, const Stream& stream) {
  CAPTURE(problem.name);
  CAPTURE(to_string(dtype));
  const AttentionSpec& spec = problem.spec;
  const Inputs inputs = inputs_of(problem, dtype);
  const auto oracle =
      cpu_ref::attention_forward<double>(spec, inputs.q, inputs.k, inputs.v, {.keep_probabilities = true});
  Run run(spec, dtype, inputs, marked, spec.shape.rows() * spec.shape.kv_len, stream);
  run.launch();
  const Tensor<double> out = run.out.to_host();
  Run plain(spec, dtype, inputs, marked, -1, stream);  // stores no support, and finds tau in another way
  plain.launch();
  const Tensor<double> plain_out = plain.out.to_host();
  const auto tau = Run::host<float>(run.tau, run.rows), plain_tau = Run::host<float>(plain.tau, run.rows);
  const auto offsets = Run::host<int64_t>(run.offsets, run.rows);
  const auto counts = Run::host<int32_t>(run.counts, run.rows);
  const auto columns = Run::host<int32_t>(run.columns, run.room);
  const auto excess = Run::host<float>(run.excess, run.room);
  const double alpha = spec.normalizer.alpha.front(), beta = 1 / (alpha - 1);
  const int64_t dim = spec.shape.head_dim;

  int64_t stored = 0, wrong_nan = 0, wrong_empty = 0, touched = 0;
  double error[2] = {0, 0}, norm = 0;
  Worst worst;
  for (int64_t row = 0; row < run.rows; ++row) {
    if (!marked(row)) {
      touched += !std::isnan(tau[row]) || counts[row] != -1 || !std::isnan(out.data()[row * dim]);
      continue;
    }
    stored += counts[row];
    const bool empty = std::isinf(oracle.tau[row]), poisoned = std::isnan(oracle.tau[row]);
    wrong_empty += empty != std::isinf(tau[row]) || empty != std::isinf(plain_tau[row]);
    wrong_nan += poisoned != std::isnan(tau[row]) || poisoned != std::isnan(plain_tau[row]) ||
                 (poisoned && counts[row] != 0);
    for (int64_t i = row * dim; i < (row + 1) * dim; ++i) {
      const double expected = oracle.out.data()[i], with = out.data()[i], without = plain_out.data()[i];
      if (!std::isfinite(expected)) {
        wrong_nan += std::isfinite(with) || std::isfinite(without);
        continue;
      }
      norm += expected * expected;
      error[0] += (with - expected) * (with - expected);
      error[1] += (without - expected) * (without - expected);
    }
    if (empty || poisoned) {
      wrong_empty += empty && counts[row] != 0;
      continue;
    }
    worst.tau = std::max(
        {worst.tau, std::abs(tau[row] - oracle.tau[row]), std::abs(plain_tau[row] - oracle.tau[row])});
    std::map<int32_t, double> expected;
    const auto& p = *oracle.probabilities;
    for (int64_t i = p.row_offsets[row]; i < p.row_offsets[row + 1]; ++i)
      expected[p.columns[i]] = std::pow(p.values[i], alpha - 1);
    double sum = 0;
    for (int64_t i = offsets[row]; i < offsets[row] + counts[row]; ++i) {
      sum += std::pow(static_cast<double>(excess[i]), beta);
      const auto found = expected.find(columns[i]);
      worst.entry =
          std::max(worst.entry, std::abs(excess[i] - (found == expected.end() ? 0 : found->second)));
      if (found != expected.end()) expected.erase(found);
    }
    for (const auto& [key, missing] : expected) worst.entry = std::max(worst.entry, missing);
    worst.sum = std::max(worst.sum, std::abs(sum - 1));
  }
  worst.out = std::max(error[0], error[1]) / std::max(norm, 1e-30);
  MESSAGE(fmt::format("{:32} {:5} tau {:.1e} sum {:.1e} entry {:.1e} out {:.1e} stored {}", problem.name,
                      to_string(dtype), worst.tau, worst.sum, worst.entry, worst.out, stored));
  CHECK(touched == 0);
  CHECK(wrong_nan == 0);
  CHECK(wrong_empty == 0);
  CHECK(worst.tau <= problem.score_error);
  CHECK(worst.entry <= 2 * problem.score_error);
  CHECK(worst.sum <= 1e-5);
  if (problem.score_error < 1) CHECK(worst.out <= (dtype == Dtype::bf16 ? 1e-4 : 1e-5));
  CHECK(stored == static_cast<int64_t>(Run::host<unsigned long long>(run.used, 1).front()));
}

}  // namespace

TEST_CASE("dense path: output, tau, sums and support are the double oracle's") {
  SKIP_WITHOUT_GPU();
  const Stream stream;
  for (const Problem& problem : problems()) {
    for (const Dtype dtype : {Dtype::bf16, Dtype::f16}) {
      if (dtype == Dtype::f16 && problem.score_error > 1e-4) continue;  // more than fp16 holds
      check(problem, dtype, every_row, stream);
    }
  }
}

TEST_CASE("dense path: rows of every pattern, and the others stay as they were") {
  SKIP_WITHOUT_GPU();
  const Stream stream;
  const auto third = [](int64_t row) { return row % 3 == 1; };
  const auto one = [](int64_t row) { return row == 217; };
  const auto some = [](int64_t row) { return row * 2654435761u % 100 < 30; };
  const auto none = [](int64_t) { return false; };
  for (const Marked& marked : {Marked(third), Marked(one), Marked(some), Marked(none)}) {
    for (const size_t i : {size_t{0}, size_t{1}, size_t{2}, size_t{17}})
      check(problems()[i], Dtype::bf16, marked, stream);
  }
}

TEST_CASE("dense path: a support that does not fit is counted, never cut") {
  SKIP_WITHOUT_GPU();
  const Stream stream;
  const Problem problem = problems().front();
  const Inputs inputs = inputs_of(problem, Dtype::bf16);
  Run whole(problem.spec, Dtype::bf16, inputs, every_row, 1 << 20, stream);
  Run small(problem.spec, Dtype::bf16, inputs, every_row, 20000, stream);
  whole.launch();
  small.launch();
  CHECK(Run::host<unsigned long long>(small.used, 1) == Run::host<unsigned long long>(whole.used, 1));
  const auto counts = Run::host<int32_t>(small.counts, small.rows);
  CHECK(counts == Run::host<int32_t>(whole.counts, whole.rows));
  const auto offsets = Run::host<int64_t>(small.offsets, small.rows);
  int64_t left_out = 0;
  for (int64_t row = 0; row < small.rows; ++row) {
    left_out += offsets[row] < 0;
    CHECK(offsets[row] + (offsets[row] < 0 ? 0 : counts[row]) <= 20000);
  }
  CHECK(left_out > 0);
  CHECK(left_out < small.rows);
  const Tensor<double> a = small.out.to_host(), b = whole.out.to_host();
  CHECK(std::memcmp(a.data(), b.data(), static_cast<size_t>(a.size()) * sizeof(double)) == 0);
}

TEST_CASE("dense path: every run gives the same bits") {
  SKIP_WITHOUT_GPU();
  const Stream stream;
  const Problem problem = problems()[2];
  const Inputs inputs = inputs_of(problem, Dtype::bf16);
  Run run(problem.spec, Dtype::bf16, inputs, every_row, -1, stream);
  run.launch();
  const Tensor<double> expected = run.out.to_host();
  const auto tau = Run::host<float>(run.tau, run.rows);
  for (int i = 0; i < 20; ++i) {
    run.out.buffer().fill(0xFF);
    run.launch();
    const Tensor<double> out = run.out.to_host();
    REQUIRE(std::memcmp(out.data(), expected.data(), static_cast<size_t>(out.size()) * sizeof(double)) == 0);
    REQUIRE(Run::host<float>(run.tau, run.rows) == tau);
  }
}

TEST_CASE("gathering lists the marked rows in order") {
  SKIP_WITHOUT_GPU();
  const Stream stream;
  for (const int rows : {1, 15, 16, 17, 1000, 16384, 100003}) {
    const int heads = 3, words = entmax::row_mask_words(rows);
    std::mt19937 random(static_cast<unsigned>(test_seed()) + static_cast<unsigned>(rows));
    std::vector<uint32_t> bits(static_cast<size_t>(heads * words));
    for (auto& word : bits) {
      const auto first = random(), second = random();
      word = static_cast<uint32_t>(first & second);
    }
    DeviceBuffer marks(stream, heads * words * 4), list(stream, heads * rows * 4), counts(stream, heads * 4);
    marks.upload(bits.data(), marks.bytes());
    entmax::ForwardProblem problem;
    problem.heads = heads;
    problem.q_len = rows;
    entmax::gather_rows(problem,
                        {.masks = static_cast<const uint32_t*>(marks.data()),
                         .queries = static_cast<int*>(list.data()),
                         .counts = static_cast<int*>(counts.data())},
                        stream.handle());
    const auto got = Run::host<int>(list, heads * rows), got_counts = Run::host<int>(counts, heads);
    for (int head = 0; head < heads; ++head) {
      std::vector<int> expected;
      for (int row = 0; row < rows; ++row)
        if (bits[static_cast<size_t>(head) * words + row / 32] >> row % 32 & 1) expected.push_back(row);
      REQUIRE(got_counts[static_cast<size_t>(head)] == static_cast<int>(expected.size()));
      CHECK(std::equal(expected.begin(), expected.end(), got.begin() + head * rows));
    }
  }
}

TEST_CASE("of a head whose rows are enough those that are named are unstored, of others the deferred ones") {
  SKIP_WITHOUT_GPU();
  const Stream stream;
  for (const int q_len : {1, 40, 1000, 40000}) {
    CAPTURE(q_len);
    const int heads = 3, words = entmax::row_mask_words(q_len);
    const int64_t rows = int64_t{heads} * q_len;
    std::vector<uint32_t> masks[2];  // of deferred rows, of those that are named
    for (auto& of_list : masks) of_list.assign(static_cast<size_t>(heads * words), 0);
    const auto is_deferred = [](int row) { return row % 100 == 3; };
    // Of head 0 all rows are named, of head 1 one in twenty, of head 2 none but those that are deferred.
    for (int head = 0; head < heads; ++head) {
      for (int row = 0; row < q_len; ++row) {
        const auto word = static_cast<size_t>(head * words + row / 32);
        const bool named = is_deferred(row) || head == 0 || (head == 1 && row % 20 == 5);
        masks[0][word] |= static_cast<uint32_t>(is_deferred(row)) << row % 32;
        masks[1][word] |= static_cast<uint32_t>(named) << row % 32;
      }
      for (auto& of_list : masks)  // bits beyond the last row are undefined
        if (q_len % 32 != 0)
          of_list[static_cast<size_t>((head + 1) * words - 1)] |= ~((1u << q_len % 32) - 1);
    }
    DeviceBuffer marks[2], lists[2], counts[2];
    entmax::ListedMasks listed[2];
    for (int list = 0; list < 2; ++list) {
      marks[list] = DeviceBuffer(stream, static_cast<int64_t>(masks[list].size()) * 4);
      marks[list].upload(masks[list].data(), marks[list].bytes());
      lists[list] = DeviceBuffer(stream, rows * 4);
      counts[list] = DeviceBuffer(stream, heads * 4);
      listed[list] = {.masks = static_cast<const uint32_t*>(marks[list].data()),
                      .queries = static_cast<int*>(lists[list].data()),
                      .counts = static_cast<int*>(counts[list].data())};
    }
    DeviceBuffer offsets(stream, rows * 8), entries(stream, rows * 4), next_share(stream, 4);
    for (DeviceBuffer* buffer : {&offsets, &entries, &next_share}) buffer->fill(0x07);
    entmax::ForwardProblem problem;
    problem.heads = heads;
    problem.q_len = q_len;
    problem.next_share = static_cast<uint32_t*>(next_share.data());
    entmax::gather_rows(
        problem, listed[0], stream.handle(), listed[1],
        {.offsets = static_cast<int64_t*>(offsets.data()), .counts = static_cast<int32_t*>(entries.data())});
    CHECK(Run::host<uint32_t>(next_share, 1).front() == 0);
    const auto got_offsets = Run::host<int64_t>(offsets, rows);
    const auto got_entries = Run::host<int32_t>(entries, rows);
    for (int list = 0; list < 2; ++list) {
      CAPTURE(list);
      const auto got = Run::host<int>(lists[list], rows), got_counts = Run::host<int>(counts[list], heads);
      for (int head = 0; head < heads; ++head) {
        std::vector<int> expected;
        for (int row = 0; row < q_len; ++row) {
          const bool unstored = is_deferred(row) || head == 0;
          if (list == 0 ? is_deferred(row) : unstored) expected.push_back(row);
          if (list == 0) continue;
          const auto at = static_cast<size_t>(head * q_len + row);
          CHECK(got_offsets[at] == (unstored ? -1 : 0x0707070707070707));
          CHECK(got_entries[at] == (unstored ? 0 : 0x07070707));
        }
        REQUIRE(got_counts[static_cast<size_t>(head)] == static_cast<int>(expected.size()));
        CHECK(std::equal(expected.begin(), expected.end(), got.begin() + int64_t{head} * q_len));
      }
    }
  }
}
