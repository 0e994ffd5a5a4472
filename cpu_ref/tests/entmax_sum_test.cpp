// sum p = 1, and p correct, for any alpha, length and pattern of scores, on every path for rows.

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "core/normalizer.h"
#include "cpu_ref/entmax/rows.h"
#include "cpu_ref/tests/entmax_oracle.h"
#include "cpu_ref/tests/entmax_rows.h"

namespace splash::cpu_ref {
namespace {

using namespace testing;

const std::vector<double> kAlphas{kLeastAlpha, 1.00001, 1.001, 1.1, 1.5, kGolden, 1.99,
                                  2,           2.01,    3,     4,   10,  33.3,    kMostAlpha};

template <class T>
constexpr double kSumError =
    std::is_same_v<T, float> ? 1e-5 : 1e-9;  // the promise; measured errors are 100 times smaller
template <class T>
constexpr double kShareError = std::is_same_v<T, float> ? 2e-7 : 2e-12;  // relative error of p
// For scores that rounding epsilon (threshold.h) moves.
constexpr double kEpsilonOfTau = 8 * 0x1p-53;

// Compares p with the oracle's, which gets the same scores.
template <class T>
void check_shares(const std::vector<T>& scores, double factor, double alpha, const std::vector<T>& p) {
  const Oracle oracle(scores, factor, alpha);
  long double sum = 0, worst = 0;
  int64_t wrong_support = 0;
  const bool whole_power = alpha == 1.5 || alpha == 2;
  const long double max = factor * oracle.count().begin()->first;
  const long double epsilon = kEpsilonOfTau * (max - oracle.tau());
  for (size_t j = 0; j < p.size(); ++j) {
    const long double expected = oracle(scores[j]);
    sum += p[j];
    if (!(std::abs(factor * scores[j] - oracle.tau()) > epsilon)) continue;
    // Integer powers are taken of z - tau itself, so p is that of a score up to epsilon away.
    const long double moved =
        whole_power ? epsilon * expected / ((alpha - 1) * (factor * scores[j] - oracle.tau())) : 0;
    worst = std::max(worst, (std::abs(p[j] - expected) - moved - std::numeric_limits<T>::denorm_min()) /
                                std::max<long double>(expected, 1e-300L));
    wrong_support += (p[j] > 0) != (static_cast<T>(expected) > 0);
  }
  CHECK(std::abs(static_cast<double>(sum - 1)) <= kSumError<T>);
  CHECK(static_cast<double>(worst) <= kShareError<T>);
  CHECK(wrong_support == 0);
}

template <class T>
void scan(const std::vector<int64_t>& lengths, const std::vector<double>& alphas,
          const std::vector<std::string>& patterns = kPatterns) {
  for (const int64_t n : lengths)
    for (const std::string& pattern : patterns)
      for (const double alpha : alphas) {
        const auto scores = hard_row<T>(pattern, n);
        CAPTURE(pattern);
        CAPTURE(n);
        CAPTURE(alpha);
        std::vector<T> p(n);
        entmax_rows<T>(scores, std::vector<double>{alpha}, 1, p);
        check_shares(scores, alpha - 1, alpha, p);
      }
}

TEST_CASE_TEMPLATE("entmax of rows: any alpha, pattern and length", T, float, double) {
  scan<T>({1, 3, 700}, kAlphas);
  scan<T>({20000}, {kLeastAlpha, 1.5, 2, 3, kMostAlpha});
}

// Runs only when asked for: `ctest -L slow`.
TEST_CASE_TEMPLATE("slow: entmax of rows of a million keys" * doctest::skip(), T, float, double) {
  scan<T>({1'000'000}, {kLeastAlpha, 1.5, 2, 3, kMostAlpha}, {"sink 0.9", "sink 0.001", "nearest"});
}

TEST_CASE_TEMPLATE("every solver leads to the same probabilities", T, float, double) {
  for (const int64_t n : {3, 500})
    for (const std::string& pattern : kPatterns)
      for (const double alpha : kAlphas) {
        auto z = hard_row<T>(pattern, n);
        const T max = *std::max_element(z.begin(), z.end());
        for (T& value : z) value = static_cast<T>(alpha - 1) * (value - max);
        for (const Solver solver : kSolvers) {
          if (!supports_alpha(solver, alpha)) continue;
          CAPTURE(pattern);
          CAPTURE(n);
          CAPTURE(alpha);
          CAPTURE(to_string(solver));
          const auto solution = solve(solver, z, alpha);
          check_shares(z, 1, alpha, probabilities(z, alpha, solution));
        }
      }
}

TEST_CASE_TEMPLATE("what went wrong once", T, float, double) {
  const auto check = [](std::vector<T> scores, double alpha) {
    CAPTURE(alpha);
    CAPTURE(scores.size());
    std::vector<T> p(scores.size());
    entmax_rows<T>(scores, std::vector<double>{alpha}, 1, p);
    check_shares(scores, alpha - 1, alpha, p);
    return p;
  };
  check({0, 0, 1}, 1.00001);
  check({2, T(1.9), 1.5}, 10);
  check(hard_row<T>("sink 0.1", 20001), 3);
  check(hard_row<T>("sink 0.1", 20001), 4);
  check(hard_row<T>("sink 0.9", 100001), 2);
  check(hard_row<T>("nearest", 1'000'000), 2);
  // One key above a million ties at the largest alpha. tau is 10^-464 below the ties. The two groups of keys
  // have p_1^(alpha-1) - p_2^(alpha-1) = (alpha-1) (s_1 - s_2) with p_1 + 10^6 p_2 = 1.
  const auto sink = hard_row<T>("sink 0.001", 1'000'001);
  const auto p = check(sink, kMostAlpha);
  const long double a = kMostAlpha - 1,
                    expected = std::pow(a * static_cast<long double>(sink[500'000]), 1 / a);
  CHECK(static_cast<double>(p[500'000]) ==
        doctest::Approx(static_cast<double>(expected)).epsilon(kShareError<T>));
  CHECK(static_cast<double>(p[0]) ==
        doctest::Approx(static_cast<double>(1e-6L * (1 - expected))).epsilon(1e3 * kShareError<T>));
}

TEST_CASE("a shift of the scores changes nothing") {
  const auto scores = hard_row<double>("gaussian", 700);
  for (const double alpha : kAlphas) {
    CAPTURE(alpha);
    std::vector<double> p(scores.size()), moved(scores.size()), shifted = scores;
    for (double& s : shifted) s += 1024;
    entmax_rows<double>(scores, std::vector<double>{alpha}, 1, p);
    entmax_rows<double>(shifted, std::vector<double>{alpha}, 1, moved);
    CHECK(p == moved);
  }
}

}  // namespace
}  // namespace splash::cpu_ref
