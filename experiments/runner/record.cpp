#include "experiments/runner/record.h"

#include <algorithm>
#include <cstdlib>

#include <fmt/format.h>

namespace splash::experiments {
namespace {

// #==== experiment: NAME | profile: quick | cases: 12 | set: alpha=2 n=64
const std::string kStart = "#==== experiment: ";

std::string field(const std::string& line, const std::string& name) {
  const std::string key = name + ": ";
  const std::size_t at = line.find(key);
  if (at == std::string::npos) return "";
  const std::size_t begin = at + key.size();
  return line.substr(begin, line.find(" | ", begin) - begin);
}

// What --set changed, without settings that no case depends on, such as a time limit. Shards that were given
// other limits thus still belong to one experiment.
std::vector<std::string> changes(const Definition& definition, const std::vector<const PlannedCase*>& cases) {
  std::vector<std::string> kept;
  for (const std::string& change : definition.overrides) {
    const std::string name = change.substr(0, change.find('='));
    const auto depends = [&](const PlannedCase* planned) {
      return find_kind(definition.kind).used(planned->parameters).count(name) > 0;
    };
    if (cases.empty() || std::any_of(cases.begin(), cases.end(), depends)) kept.push_back(change);
  }
  return kept;
}

}  // namespace

std::string record(const std::vector<Definition>& definitions, bool quick,
                   const std::vector<PlannedCase>& cases) {
  std::string text;
  for (std::size_t experiment = 0; experiment < definitions.size(); ++experiment) {
    const Definition& definition = definitions[experiment];
    std::vector<const PlannedCase*> own;
    for (const PlannedCase& planned : cases)
      if (planned.experiment == experiment) own.push_back(&planned);
    text += fmt::format("{}{} | profile: {} | cases: {}", kStart, definition.name, quick ? "quick" : "full",
                        own.size());
    if (const auto changed = changes(definition, own); !changed.empty())
      text += fmt::format(" | set: {}", fmt::join(changed, " "));
    text += "\n" + definition.toml;
    if (text.back() != '\n') text += '\n';
  }
  return text;
}

std::vector<RecordedExperiment> read_record(const std::string& text) {
  std::vector<RecordedExperiment> experiments;
  std::size_t begin = text.compare(0, kStart.size(), kStart) == 0 ? 0 : text.size();
  while (begin < text.size()) {
    const std::size_t line_end = std::min(text.find('\n', begin), text.size() - 1);
    const std::size_t next = text.find("\n" + kStart, line_end);
    const std::size_t end = next == std::string::npos ? text.size() : next + 1;
    const std::string line = text.substr(begin, line_end - begin);
    const std::string name = field(line, "experiment");
    RecordedExperiment found;
    found.definition = parse_definition(text.substr(line_end + 1, end - line_end - 1), name, name + ".toml");
    found.profile = field(line, "profile");
    found.cases = std::strtoll(field(line, "cases").c_str(), nullptr, 10);
    experiments.push_back(std::move(found));
    begin = end;
  }
  return experiments;
}

std::vector<Definition> definitions_of(const std::vector<RecordedExperiment>& experiments) {
  std::vector<Definition> definitions;
  for (const RecordedExperiment& experiment : experiments) definitions.push_back(experiment.definition);
  return definitions;
}

}  // namespace splash::experiments
