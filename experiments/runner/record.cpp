#include "experiments/runner/record.h"

#include <algorithm>
#include <cstdlib>

#include <fmt/format.h>

#include "core/toml_table.h"

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

// One experiment of a record: its first line, and its definition.
struct Entry {
  std::string line, toml;
};

std::vector<Entry> entries_of(const std::string& text) {
  std::vector<Entry> entries;
  std::size_t begin = text.compare(0, kStart.size(), kStart) == 0 ? 0 : text.size();
  while (begin < text.size()) {
    const std::size_t line_end = std::min(text.find('\n', begin), text.size() - 1);
    const std::size_t next = text.find("\n" + kStart, line_end);
    const std::size_t end = next == std::string::npos ? text.size() : next + 1;
    entries.push_back({text.substr(begin, line_end - begin), text.substr(line_end + 1, end - line_end - 1)});
    begin = end;
  }
  return entries;
}

void apply_changes(Definition& definition, const std::string& set) {
  for (std::size_t begin = 0; begin < set.size();) {
    const std::size_t end = std::min(set.find(' ', begin), set.size());
    override_parameter(definition, set.substr(begin, end - begin));
    begin = end + 1;
  }
}

// What --set changed, without settings that no case depends on, such as a time limit. Shards that were given
// other limits thus still belong to one experiment.
std::vector<std::string> changes(const Definition& definition, const std::vector<const PlannedCase*>& cases) {
  std::vector<std::string> kept;
  for (const std::string& change : override_texts(definition)) {
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
  for (const Entry& entry : entries_of(text)) {
    const std::string name = field(entry.line, "experiment");
    RecordedExperiment found;
    found.definition = parse_definition(entry.toml, name, name + ".toml");
    apply_changes(found.definition, field(entry.line, "set"));
    found.profile = field(entry.line, "profile");
    found.cases = std::strtoll(field(entry.line, "cases").c_str(), nullptr, 10);
    experiments.push_back(std::move(found));
  }
  return experiments;
}

void add_kinds(report::Report& report) {
  const report::Column* const names = report.find("experiment");
  if (names == nullptr || !names->info.is_text || report.find("kind") != nullptr) return;
  std::map<std::string, std::string> kinds;
  for (const Entry& entry : entries_of(report.provenance.experiment_toml)) {
    const std::string name = field(entry.line, "experiment");
    try {
      kinds[name] = parse_toml(entry.toml, name)["kind"].value_or(std::string());
    } catch (const InvalidArgument&) {
      return;  // a record that another program wrote
    }
  }
  report::Column column{.info = {.name = "kind",
                                 .units = "1",
                                 .long_name = "kind of the case's experiment",
                                 .formula = "as the experiment's definition says",
                                 .is_text = true,
                                 .is_parameter = true}};
  for (const std::string& name : names->texts) {
    if (kinds[name].empty()) return;
    column.texts.push_back(kinds[name]);
  }
  report.results.push_back(std::move(column));
}

namespace {

// The profile that was run, with axes of one value as what they are.
Profile run_profile(const RecordedExperiment& experiment) {
  Profile profile = experiment.definition.profile(experiment.profile == "quick");
  for (const Axis& axis : profile.axes)
    if (axis.values.size() == 1) profile.fixed[axis.name] = axis.values.front();
  std::erase_if(profile.axes, [](const Axis& axis) { return axis.values.size() == 1; });
  return profile;
}

}  // namespace

void adopt_names(report::Report& report, const report::Report& of) {
  std::string& text = report.provenance.experiment_toml;
  report::Column* const names = report.find("experiment");
  if (text == of.provenance.experiment_toml || names == nullptr || !names->info.is_text) return;
  std::vector<RecordedExperiment> theirs = read_record(of.provenance.experiment_toml);
  std::map<std::string, std::string> renamed;
  for (const RecordedExperiment& ours : read_record(text)) {
    const auto same = std::find_if(theirs.begin(), theirs.end(), [&](const RecordedExperiment& other) {
      return other.definition.kind == ours.definition.kind && other.cases == ours.cases &&
             run_profile(other) == run_profile(ours);
    });
    if (same == theirs.end()) return;
    renamed[ours.definition.name] = same->definition.name;
    theirs.erase(same);
  }
  if (renamed.empty() || !theirs.empty()) return;
  const auto rename = [&](const std::string& name) {
    return renamed.contains(name) ? renamed.at(name) : name;
  };
  for (std::string& name : names->texts) name = rename(name);
  std::string inputs;  // a line an experiment: "NAME: hash of …"
  for (std::string_view rest = report.provenance.input_hashes; !rest.empty();) {
    const std::string_view line = rest.substr(0, std::min(rest.find('\n'), rest.size() - 1) + 1);
    const std::size_t colon = std::min(line.find(": "), line.size());
    inputs += rename(std::string(line.substr(0, colon))).append(line.substr(colon));
    rest.remove_prefix(line.size());
  }
  report.provenance.input_hashes = inputs;
  text = of.provenance.experiment_toml;
}

std::vector<Definition> definitions_of(const std::vector<RecordedExperiment>& experiments) {
  std::vector<Definition> definitions;
  for (const RecordedExperiment& experiment : experiments) definitions.push_back(experiment.definition);
  return definitions;
}

}  // namespace splash::experiments
