// Operations on a Definition: find it, expand it into cases, join several.

#include "experiments/runner/definition.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include <fmt/format.h>

#include "core/checked.h"
#include "core/error.h"
#include "core/suggest.h"
#include "experiments/runner/value.h"

namespace splash::experiments {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMostCases = 10'000'000;

std::string describe(const Parameters& parameters) {
  std::string text;
  for (const auto& [name, value] : parameters)
    text += fmt::format("{}{}={}", text.empty() ? "" : ", ", name, to_text(value));
  return text;
}

}  // namespace

const std::vector<std::string>& statistic_names() {
  static const std::vector<std::string> names{"median", "mean", "min",           "max",        "sum",
                                              "p05",    "p95",  "fraction_true", "median_case"};
  return names;
}

const char* to_string(Relation relation) {
  static const char* const names[] = {"equal", "below", "above"};
  return names[static_cast<int>(relation)];
}

Relation relation_from_string(const std::string& name) {
  const std::vector<std::string> names{"equal", "below", "above"};
  const auto found = std::find(names.begin(), names.end(), name);
  if (found == names.end())
    throw InvalidArgument(fmt::format("unknown relation '{}'{}", name, suggestion(name, names)));
  return static_cast<Relation>(found - names.begin());
}

std::vector<std::string> definition_files(const std::string& folder) {
  std::vector<std::string> files;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (entry.path().extension() == ".toml") files.push_back(entry.path().string());
  }
  std::sort(files.begin(), files.end());
  return files;
}

std::vector<Definition> find_definitions(const std::string& name_or_path,
                                         const std::vector<std::string>& files) {
  if (fs::is_directory(name_or_path)) {
    std::vector<Definition> all;
    for (const std::string& file : definition_files(name_or_path)) all.push_back(read_definition(file));
    if (all.empty()) throw InvalidArgument(fmt::format("the folder {} holds no *.toml", name_or_path));
    return all;
  }
  const bool is_path =
      name_or_path.find('/') != std::string::npos || fs::path(name_or_path).extension() == ".toml";
  if (is_path) return {read_definition(name_or_path)};
  std::vector<std::string> names;
  for (const std::string& file : files) {
    names.push_back(fs::path(file).stem().string());
    if (names.back() == name_or_path) return {read_definition(file)};
  }
  for (const std::string& file : files) {  // "papers" stands for all of experiments/papers
    const fs::path folder = fs::path(file).parent_path();
    const std::string name = folder.filename().string();
    if (name == name_or_path) return find_definitions(folder.string(), files);
    if (std::ranges::find(names, name) == names.end()) names.push_back(name);
  }
  throw InvalidArgument(
      fmt::format("there is no experiment '{}'{}", name_or_path, suggestion(name_or_path, names)));
}

int64_t case_count(const Profile& profile) {
  std::vector<int64_t> lengths;
  if (!profile.zip.empty()) lengths.push_back(static_cast<int64_t>(profile.zip.front().values.size()));
  for (const Axis& axis : profile.axes) lengths.push_back(static_cast<int64_t>(axis.values.size()));
  const auto count = checked_product(lengths);
  if (count && *count <= kMostCases) return *count;
  throw InvalidArgument(fmt::format("the lists of [axes] multiply to {} cases; at most {} are run",
                                    count ? fmt::format("{}", *count) : "more than 2^63", kMostCases));
}

std::vector<Parameters> expand(const Definition& definition, const Profile& profile) {
  const Kind& kind = find_kind(definition.kind);
  try {
    case_count(profile);
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(fmt::format("{}: {}", definition.file, error.what()));
  }
  std::vector<Parameters> cases{profile.fixed};
  // Multiplies the cases so far by the values of one more factor. The newest factor changes fastest.
  auto multiply = [&](std::size_t steps, auto&& set) {
    std::vector<Parameters> product;
    product.reserve(cases.size() * steps);
    for (const Parameters& before : cases) {
      for (std::size_t step = 0; step < steps; ++step) {
        product.push_back(before);
        set(product.back(), step);
      }
    }
    cases = std::move(product);
  };
  if (!profile.zip.empty()) {
    multiply(profile.zip.front().values.size(), [&](Parameters& parameters, std::size_t step) {
      for (const Axis& axis : profile.zip) parameters[axis.name] = axis.values[step];
    });
  }
  for (const Axis& axis : profile.axes) {
    multiply(axis.values.size(),
             [&](Parameters& parameters, std::size_t step) { parameters[axis.name] = axis.values[step]; });
  }

  std::set<Parameters> seen;
  for (Parameters& parameters : cases) {
    try {
      parameters = completed(kind, parameters);
      if (!seen.insert(parameters).second) throw InvalidArgument("two cases have the same parameters");
      kind.check(parameters);
    } catch (const InvalidArgument& error) {
      throw InvalidArgument(
          fmt::format("{}: {} (in the case {})", definition.file, error.what(), describe(parameters)));
    }
  }
  return cases;
}

}  // namespace splash::experiments
