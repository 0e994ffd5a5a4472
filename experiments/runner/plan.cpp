#include "experiments/runner/plan.h"

#include <charconv>

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

std::vector<PlannedCase> plan(const std::vector<Definition>& definitions, bool quick) {
  std::vector<PlannedCase> cases;
  for (std::size_t experiment = 0; experiment < definitions.size(); ++experiment) {
    const Definition& definition = definitions[experiment];
    const Kind& kind = find_kind(definition.kind);
    const std::vector<Parameters> expanded = expand(definition, definition.profile(quick));
    for (std::size_t index = 0; index < expanded.size(); ++index) {
      PlannedCase planned{experiment, static_cast<int64_t>(index), expanded[index], {}, {}, {}};
      planned.parameters_hash = hash_of(planned.parameters);
      planned.input_hash = kind.input_hash(planned.parameters);
      planned.case_id = case_id(kind.name(), planned.parameters, binary_hash(), planned.input_hash);
      cases.push_back(std::move(planned));
    }
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
