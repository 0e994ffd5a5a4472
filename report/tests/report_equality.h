#pragma once
// Compares two reports field by field, with NaN equal to NaN.

#include <cmath>
#include <cstring>

#include <doctest/doctest.h>

#include "report/report.h"

namespace splash::report::testing {

inline bool same_numbers(const std::vector<double>& a, const std::vector<double>& b) {
  const auto same = [](double x, double y) {
    return (std::isnan(x) && std::isnan(y)) || (x == y && std::signbit(x) == std::signbit(y));
  };
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), same);
}

inline void check_same(const Column& a, const Column& b) {
  CAPTURE(a.info.name);
  CHECK(a.info.name == b.info.name);
  CHECK(a.info.units == b.info.units);
  CHECK(a.info.long_name == b.info.long_name);
  CHECK(a.info.formula == b.info.formula);
  CHECK(a.info.is_text == b.info.is_text);
  CHECK(a.info.is_parameter == b.info.is_parameter);
  CHECK(a.info.reproducible == b.info.reproducible);
  CHECK(a.info.missing_reason == b.info.missing_reason);
  CHECK(a.info.dimension == b.info.dimension);
  CHECK(a.width == b.width);
  CHECK(a.texts == b.texts);
  CHECK(same_numbers(a.numbers, b.numbers));
}

inline void check_same(const Attachment& a, const Attachment& b) {
  CAPTURE(a.name);
  CHECK(a.case_id == b.case_id);
  CHECK(a.name == b.name);
  CHECK(a.units == b.units);
  CHECK(a.long_name == b.long_name);
  CHECK(a.formula == b.formula);
  CHECK(a.dimensions == b.dimensions);
  CHECK(a.extents == b.extents);
  CHECK(a.labels == b.labels);
  CHECK(same_numbers(a.numbers, b.numbers));
}

inline void check_same(const Provenance& a, const Provenance& b) {
  using P = Provenance;
  for (const auto field : {&P::commit, &P::argv, &P::experiment_toml, &P::host, &P::cpu, &P::gpu, &P::driver,
                           &P::clocks, &P::toolchain, &P::input_hashes, &P::started, &P::finished}) {
    CHECK(a.*field == b.*field);
  }
  CHECK(a.dirty == b.dirty);
  CHECK(a.seed == b.seed);
  for (const auto field : {&P::threads, &P::compute_capability, &P::multiprocessors, &P::l2_bytes})
    CHECK(a.*field == b.*field);
}

inline void check_same(const Report& a, const Report& b) {
  CHECK(a.title == b.title);
  CHECK(a.run_id == b.run_id);
  CHECK(a.status == b.status);
  CHECK(a.history == b.history);
  check_same(a.provenance, b.provenance);

  REQUIRE(a.ceilings.size() == b.ceilings.size());
  for (size_t i = 0; i < a.ceilings.size(); ++i) {
    const Ceiling &x = a.ceilings[i], &y = b.ceilings[i];
    for (const auto field : {&Ceiling::name, &Ceiling::dtype, &Ceiling::units, &Ceiling::method}) {
      CHECK(x.*field == y.*field);
    }
    CHECK(same_numbers({x.measured, x.low, x.high, x.datasheet}, {y.measured, y.low, y.high, y.datasheet}));
  }

  CHECK(a.cases() == b.cases());
  REQUIRE(a.results.size() == b.results.size());
  for (size_t i = 0; i < a.results.size(); ++i) check_same(a.results[i], b.results[i]);
  REQUIRE(a.dimensions.size() == b.dimensions.size());
  for (size_t i = 0; i < a.dimensions.size(); ++i) {
    CHECK(a.dimensions[i].name == b.dimensions[i].name);
    CHECK(a.dimensions[i].units == b.dimensions[i].units);
    CHECK(a.dimensions[i].long_name == b.dimensions[i].long_name);
    CHECK(a.dimensions[i].values == b.dimensions[i].values);
  }
  REQUIRE(a.attachments.size() == b.attachments.size());
  for (size_t i = 0; i < a.attachments.size(); ++i) check_same(a.attachments[i], b.attachments[i]);

  REQUIRE(a.claims.size() == b.claims.size());
  for (size_t i = 0; i < a.claims.size(); ++i) {
    using C = ClaimResult;
    const C &x = a.claims[i], &y = b.claims[i];
    for (const auto field : {&C::id, &C::source, &C::claim, &C::units, &C::theirs, &C::reason, &C::method}) {
      CHECK(x.*field == y.*field);
    }
    for (const auto field : {&C::theirs_value, &C::ours, &C::ours_low, &C::ours_high, &C::tolerance}) {
      CHECK(same_numbers({x.*field}, {y.*field}));
    }
    CHECK(x.verdict == y.verdict);
  }
}

}  // namespace splash::report::testing
