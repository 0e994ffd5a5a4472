#include "experiments/runner/plan.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include <fmt/format.h>

#include "core/error.h"
#include "experiments/runner/hash.h"

namespace splash::experiments {

Shard parse_shard(const std::string& text) {
  Shard shard;
  const char* const end = text.data() + text.size();
  const auto [slash, error] = std::from_chars(text.data(), end, shard.index);
  bool good = error == std::errc() && slash != end && *slash == '/';
  if (good) {
    const auto [last, second_error] = std::from_chars(slash + 1, end, shard.count);
    good = second_error == std::errc() && last == end;
  }
  if (!good || shard.count < 1 || shard.index < 1 || shard.index > shard.count) {
    throw InvalidArgument(fmt::format("--shard takes i/N with 1 <= i <= N, for example 2/8, not '{}'", text));
  }
  return shard;
}

std::string to_string(const Shard& shard) {
  return fmt::format("{}/{}", shard.index, shard.count);
}

namespace {

bool same(const Value& a, const Value& b) {
  auto number = [](const Value& value) -> std::optional<double> {
    if (const auto* integer = std::get_if<int64_t>(&value)) return static_cast<double>(*integer);
    if (const auto* real = std::get_if<double>(&value)) return *real;
    return std::nullopt;
  };
  const auto left = number(a), right = number(b);
  return left && right ? *left == *right : a == b;
}

// A name that is no parameter is a result's. It is unknown before the run, so it excludes no case.
bool may_fit(const Filter& where, const Parameters& parameters) {
  return std::all_of(where.begin(), where.end(), [&](const auto& entry) {
    const auto found = parameters.find(entry.first);
    return found == parameters.end() ||
           std::any_of(entry.second.begin(), entry.second.end(),
                       [&](const Value& value) { return same(found->second, value); });
  });
}

bool may_fit(const Measurement& measurement, const Parameters& parameters) {
  return may_fit(measurement.where, parameters) && may_fit(measurement.held, parameters);
}

bool is_judged(const Definition& definition, const Parameters& parameters) {
  return std::any_of(definition.expectations.begin(), definition.expectations.end(),
                     [&](const Expectation& expected) {
                       return may_fit(expected.measured, parameters) ||
                              (expected.over && may_fit(*expected.over, parameters));
                     });
}

}  // namespace

std::vector<PlannedCase> plan(const std::vector<Definition>& definitions, bool quick, Cases which) {
  std::vector<PlannedCase> cases;
  for (std::size_t experiment = 0; experiment < definitions.size(); ++experiment) {
    const Definition& definition = definitions[experiment];
    const Kind& kind = find_kind(definition.kind);
    const std::vector<Parameters> expanded = expand(definition, definition.profile(quick));
    for (std::size_t index = 0; index < expanded.size(); ++index) {
      if (which == Cases::judged && !is_judged(definition, expanded[index])) continue;
      PlannedCase planned{experiment, static_cast<int64_t>(index), expanded[index], {}, {}, {}};
      planned.parameters_hash = hash_of(planned.parameters);
      planned.input_hash = kind.input_hash(planned.parameters);
      planned.case_id = case_id(kind.name(), planned.parameters, binary_hash(), planned.input_hash);
      cases.push_back(std::move(planned));
    }
  }
  if (cases.empty() && which == Cases::judged) {
    throw InvalidArgument("--judged runs the cases that an [[expect]] looks at, and there is none here");
  }
  return cases;
}

std::vector<PlannedCase> cases_of(const Shard& shard, const std::vector<PlannedCase>& all) {
  std::vector<PlannedCase> cases;
  for (const PlannedCase& planned : all) {
    if (planned.index % shard.count == shard.index - 1) cases.push_back(planned);
  }
  return cases;
}

}  // namespace splash::experiments
