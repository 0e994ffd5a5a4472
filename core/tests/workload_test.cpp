#include "core/workload.h"

#include <algorithm>
#include <cmath>
#include <omp.h>
#include <set>

#include <doctest/doctest.h>

#include "core/error.h"

using namespace splash;

namespace {

const AttentionShape kShape{
    .batch = 1, .q_heads = 2, .kv_heads = 1, .q_len = 96, .kv_len = 128, .head_dim = 32};

Eigen::MatrixXd scores(const AttentionInputs<double>& in) {
  return in.q.matrix(0, 0) * in.k.matrix(0, 0).transpose() / std::sqrt(static_cast<double>(in.q.dim()));
}

}  // namespace

TEST_CASE("a workload is the same for any number of threads, and differs by seed") {
  for (const auto kind : {WorkloadKind::gaussian, WorkloadKind::clustered, WorkloadKind::local,
                          WorkloadKind::sink, WorkloadKind::ties}) {
    omp_set_num_threads(1);
    const auto one = make_inputs<double>({.kind = kind}, kShape);
    omp_set_num_threads(2);
    const auto two = make_inputs<double>({.kind = kind}, kShape);
    CHECK(one.q.matrix(0, 1) == two.q.matrix(0, 1));
    CHECK(one.k.matrix(0, 0) == two.k.matrix(0, 0));
    const auto other = make_inputs<double>({.kind = kind, .seed = 2}, kShape);
    CHECK(one.v.matrix(0, 0) != other.v.matrix(0, 0));
    CHECK(one.shape() == kShape);
  }
}

TEST_CASE("gaussian: the query variance is the scores' variance") {
  const auto in = make_inputs<double>({.query_variance = 6}, {.q_len = 300, .kv_len = 300, .head_dim = 64});
  CHECK(in.q.matrix(0, 0).squaredNorm() / in.q.size() == doctest::Approx(6).epsilon(0.05));
  CHECK(scores(in).squaredNorm() / (300 * 300) == doctest::Approx(6).epsilon(0.1));
}

TEST_CASE("clustered: scores inside the own cluster stand out") {
  const auto in = make_inputs<double>({.kind = WorkloadKind::clustered, .clusters = 4}, kShape);
  const Eigen::MatrixXd s = scores(in);
  // Members of a cluster are nearly equal, so each row's scores form 4 groups, and the best quarter is far
  // above the rest.
  int clear = 0;
  for (int64_t i = 0; i < s.rows(); ++i) {
    Eigen::VectorXd row = s.row(i);
    std::sort(row.begin(), row.end());
    clear += row(row.size() - 5) - row(row.size() / 2) > 2 ? 1 : 0;
  }
  CHECK(clear > 0.9 * s.rows());
}

TEST_CASE("local: scores fall with the distance") {
  const AttentionShape square{.q_len = 256, .kv_len = 256, .head_dim = 64};
  const Eigen::MatrixXd s = scores(make_inputs<double>({.kind = WorkloadKind::local, .length = 16}, square));
  double near = 0, middle = 0, far = 0;
  for (int i = 100; i < 150; ++i) {
    near += s(i, i) / 50;
    middle += s(i, i + 16) / 50;
    far += s(i, i + 90) / 50;
  }
  CHECK(near > middle + 2);
  CHECK(middle > far + 1);
}

TEST_CASE("sink: key 0 stands the gap above a crowd of the given spread") {
  const Eigen::MatrixXd s = scores(make_inputs<double>(
      {.kind = WorkloadKind::sink, .spread = 0.2, .gap = 1.5}, {.q_len = 2, .kv_len = 5000, .head_dim = 64}));
  CHECK(s(1, 0) == doctest::Approx(1.5));
  const auto crowd = s.row(0).tail(4999);
  CHECK(std::abs(crowd.mean()) < 0.02);
  CHECK(std::sqrt(crowd.squaredNorm() / 4999) == doctest::Approx(0.2).epsilon(0.05));
}

TEST_CASE("ties: few distinct scores, exactly equal") {
  const Eigen::MatrixXd s = scores(make_inputs<double>({.kind = WorkloadKind::ties, .clusters = 5}, kShape));
  const Eigen::VectorXd row = s.row(0);
  CHECK(std::set<double>(row.begin(), row.end()).size() <= 5);
}

TEST_CASE("score rows follow their workload") {
  const auto row = make_score_row({.query_variance = 1}, 20000);
  double second = 0;
  for (const double s : row) second += s * s / 20000;
  CHECK(second == doctest::Approx(1).epsilon(0.05));
  const auto sink = make_score_row({.kind = WorkloadKind::sink, .spread = 0.1, .gap = 0.5}, 1000);
  CHECK(sink[0] == doctest::Approx(0.5));
  CHECK(*std::max_element(sink.begin() + 1, sink.end()) < 0.5);
  const auto local = make_score_row({.kind = WorkloadKind::local}, 65);
  CHECK(std::max_element(local.begin(), local.end()) - local.begin() >= 20);
}

TEST_CASE("workloads that cannot be are refused") {
  CHECK_THROWS_AS(make_score_row({}, 0), InvalidArgument);
  CHECK_THROWS_AS(make_inputs<float>({.query_variance = -1}, kShape), InvalidArgument);
  CHECK_THROWS_AS(make_inputs<float>({.clusters = 0}, kShape), InvalidArgument);
  CHECK_THROWS_AS(workload_from_string("gauss"), InvalidArgument);
}

TEST_CASE("shared keys: one from each of equal ranges of what the tile's last query sees") {
  const AttentionShape shape{
      .batch = 2, .q_heads = 4, .kv_heads = 2, .q_len = 100, .kv_len = 130, .head_dim = 8};
  for (const bool causal : {false, true}) {
    for (const double share : {0.01, 0.1, 0.9, 1.0}) {
      CAPTURE(causal);
      CAPTURE(share);
      const Mask mask{.causal = causal};
      const Selection selection = make_shared_keys(shape, mask, 32, share, 3);
      CHECK_NOTHROW(selection.validate(shape));
      CHECK(selection.tiles(shape) == 4);
      for (int64_t b = 0; b < shape.batch; ++b) {
        for (int64_t q = 0; q < shape.q_len; q += 32) {
          const int32_t* const keys = selection.keys_of(shape, b, 3, q);
          const auto count = std::find(keys, keys + selection.k_keep, -1) - keys;
          const RowMask last = mask.row(shape, b, 3, std::min<int64_t>(q + 32, 100) - 1);
          CHECK(count == static_cast<int64_t>(std::ceil(share * static_cast<double>(last.count()))));
          CHECK(std::all_of(keys, keys + count, [&](int32_t key) { return last.visible(key); }));
        }
      }
      CHECK((share == 1.0 || make_shared_keys(shape, mask, 32, share, 4).keys != selection.keys));
    }
  }
  CHECK_THROWS_AS(make_shared_keys(shape, {}, 32, 0, 1), InvalidArgument);
  CHECK_THROWS_AS(make_shared_keys(shape, {}, 32, 1.5, 1), InvalidArgument);
}
