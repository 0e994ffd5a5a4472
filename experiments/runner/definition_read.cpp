// Reads a Definition from TOML.

#include <algorithm>
#include <filesystem>

#include "core/text_file.h"
#include "core/toml_table.h"
#include "experiments/runner/definition.h"
#include "experiments/runner/toml_value.h"
#include "experiments/runner/value.h"

namespace splash::experiments {
namespace {

namespace fs = std::filesystem;

struct Reader {
  std::string file;
  const Kind& kind;
  std::vector<ParameterInfo> declared = kind.parameters();
  std::vector<report::ColumnInfo> columns = kind.columns();

  // Adds file and line to the message of the parameter's declaration.
  Value value_for(const std::string& name, const toml::node& node) const {
    try {
      const ParameterInfo& info = find_parameter(kind, declared, name);
      const auto scalar = scalar_of(node);
      if (!scalar) {
        throw InvalidArgument(
            fmt::format("parameter '{}' must be one value of type {}", name, to_string(info.type)));
      }
      return checked(info, *scalar);
    } catch (const InvalidArgument& error) {
      throw InvalidArgument(place_of(file, node) + ": " + error.what());
    }
  }

  std::vector<Axis> axes(const toml::table& table, const std::string& what) const {
    std::vector<std::pair<const toml::key*, const toml::node*>> entries;
    for (const auto& [key, node] : table) entries.emplace_back(&key, &node);
    // toml++ sorts keys by name. This restores the order of the file, which its author meant.
    std::sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) {
      const auto left = a.first->source().begin, right = b.first->source().begin;
      return left.line != right.line ? left.line < right.line : left.column < right.column;
    });
    std::vector<Axis> result;
    for (const auto& [key, node] : entries) {
      const std::string name(key->str());
      const toml::array* array = node->as_array();
      if (array == nullptr) {
        find_parameter_at(*node, name);
        fail(*node, fmt::format("'{}' in {} must be a list of values; a single value belongs into [fixed]",
                                name, what));
      }
      if (array->empty())
        fail(*node, fmt::format("the list of '{}' in {} is empty; give at least one value", name, what));
      Axis axis{name, {}};
      for (const toml::node& element : *array) {
        for (Value& choice : kind.choices(name, value_for(name, element)))
          axis.values.push_back(std::move(choice));
      }
      result.push_back(std::move(axis));
    }
    return result;
  }

  void find_parameter_at(const toml::node& node, const std::string& name) const {
    try {
      find_parameter(kind, declared, name);
    } catch (const InvalidArgument& error) {
      fail(node, error.what());
    }
  }

  Profile profile(TomlTable& table, const std::string& prefix) const {
    Profile result;
    if (const toml::table* fixed = table.table("fixed")) {
      for (const auto& [key, node] : *fixed)
        result.fixed[std::string(key.str())] = value_for(std::string(key.str()), node);
    }
    if (const toml::table* found = table.table("axes"))
      result.axes = axes(*found, fmt::format("[{}axes]", prefix));
    if (const toml::table* found = table.table("zip"))
      result.zip = axes(*found, fmt::format("[{}zip]", prefix));
    require_once(table, result, prefix);
    return result;
  }

  void require_once(const TomlTable& table, const Profile& profile, const std::string& prefix) const {
    std::set<std::string> seen;
    auto see = [&](const std::string& name) {
      if (seen.insert(name).second) return;
      fail(table.raw(), fmt::format("'{}' is set twice; give it in one of [{}fixed], [{}axes] and [{}zip]",
                                    name, prefix, prefix, prefix));
    };
    for (const auto& [name, value] : profile.fixed) see(name);
    for (const Axis& axis : profile.axes) see(axis.name);
    for (const Axis& axis : profile.zip) see(axis.name);
  }

  void require_equal_lengths(const toml::table& root, const Profile& profile,
                             const std::string& which) const {
    for (const Axis& axis : profile.zip) {
      const Axis& first = profile.zip.front();
      if (axis.values.size() == first.values.size()) continue;
      const toml::node* at = root.get("zip");
      fail(at != nullptr ? *at : static_cast<const toml::node&>(root),
           fmt::format("the lists of {} must be of equal length, but '{}' has {} values and '{}' has {}",
                       which, first.name, first.values.size(), axis.name, axis.values.size()));
    }
  }

  Measurement measurement(TomlTable& table, const std::optional<Measurement>& defaults) const {
    Measurement result;
    if (const auto column = table.text("column")) {
      result.column = *column;
      require_column(*table.find("column"), *column, false);
    } else if (defaults) {
      result.column = defaults->column;
    } else {
      table.required_text("column");
    }
    if (const auto name = table.text("statistic")) {
      const auto& names = statistic_names();
      const auto found = std::find(names.begin(), names.end(), *name);
      if (found == names.end()) {
        table.fail(*table.find("statistic"),
                   fmt::format("unknown statistic '{}'{}", *name, suggestion(*name, names)));
      }
      result.statistic = static_cast<Statistic>(found - names.begin());
    } else if (defaults) {
      result.statistic = defaults->statistic;
    }
    if (const toml::table* where = table.table("where")) {
      for (const auto& [key, node] : *where)
        result.where[std::string(key.str())] = filter_values(std::string(key.str()), node);
    }
    return result;
  }

  std::vector<Value> filter_values(const std::string& name, const toml::node& node) const {
    const bool is_parameter =
        std::any_of(declared.begin(), declared.end(), [&](auto& info) { return info.name == name; });
    if (!is_parameter) require_column(node, name, true);
    std::vector<Value> values;
    auto add = [&](const toml::node& element) {
      if (is_parameter) return values.push_back(value_for(name, element));
      const auto scalar = scalar_of(element);
      if (!scalar) fail(element, fmt::format("'{}' in where must be a value or a list of values", name));
      values.push_back(*scalar);
    };
    if (const toml::array* array = node.as_array()) {
      for (const toml::node& element : *array) add(element);
    } else {
      add(node);
    }
    return values;
  }

  void require_column(const toml::node& node, const std::string& name, bool text_too) const {
    std::vector<std::string> allowed;
    for (const report::ColumnInfo& info : columns) {
      if (!info.dimension.empty() || (info.is_text && !text_too)) continue;
      if (info.name == name) return;
      allowed.push_back(info.name);
    }
    fail(node, fmt::format("kind '{}' has no {}column '{}'{}", kind.name(), text_too ? "" : "numeric ", name,
                           suggestion(name, allowed)));
  }

  Expectation expectation(const toml::table& raw) const {
    TomlTable table(raw, file, "[[expect]]");
    Expectation result;
    result.line = static_cast<int>(raw.source().begin.line);
    const auto claim = table.text("claim"), check = table.text("check");
    if (claim.has_value() == check.has_value()) {
      table.fail(raw,
                 "[[expect]] needs either 'claim', the id of an entry of data/claims, or 'check', a name of "
                 "its own");
    }
    if (const auto as = table.text("as")) {
      if (*as != "percent" && *as != "gain_percent")
        fail(*table.find("as"), fmt::format("'as' is '{}'; allowed: percent, gain_percent", *as));
      result.as = *as == "percent" ? RatioAs::percent : RatioAs::gain_percent;
    }
    result.claim = claim.value_or("");
    result.check = check.value_or("");
    if (check) {
      int bounds = 0;
      for (const Relation relation : {Relation::equal, Relation::below, Relation::above}) {
        if (const auto bound = table.number(to_string(relation))) {
          result.relation = relation;
          result.bound = *bound;
          ++bounds;
        }
      }
      if (bounds != 1) table.fail(raw, "[[expect]] with 'check' needs one of 'below', 'above' and 'equal'");
      result.tolerance = table.number("tolerance").value_or(0);
    }
    result.measured = measurement(table, std::nullopt);
    if (const toml::table* over = table.table("over")) {
      TomlTable over_table(*over, file, "over");
      result.over = measurement(over_table, result.measured);
      over_table.finish();
    }
    if (result.as != RatioAs::ratio && !result.over)
      table.fail(raw, "'as' needs 'over', what the percentage is of");
    table.finish();
    return result;
  }

  [[noreturn]] void fail(const toml::node& node, const std::string& sentence) const {
    throw InvalidArgument(place_of(file, node) + ": " + sentence);
  }
};

void erase(Profile& profile, const std::string& name) {
  profile.fixed.erase(name);
  for (auto* axes : {&profile.axes, &profile.zip}) {
    axes->erase(
        std::remove_if(axes->begin(), axes->end(), [&](const Axis& axis) { return axis.name == name; }),
        axes->end());
  }
}

// The quick profile's entries replace the full profile's entries of the same parameters; an axis keeps its
// place.
Profile overlaid(const Profile& full, const Profile& quick) {
  Profile result = full;
  for (const auto& [name, value] : quick.fixed) {
    erase(result, name);
    result.fixed[name] = value;
  }
  auto replace = [&](const std::vector<Axis>& from, std::vector<Axis> Profile::*member) {
    for (const Axis& axis : from) {
      std::vector<Axis>& axes = result.*member;
      const auto same =
          std::find_if(axes.begin(), axes.end(), [&](const Axis& other) { return other.name == axis.name; });
      if (same != axes.end()) {
        same->values = axis.values;
      } else {
        erase(result, axis.name);
        axes.push_back(axis);
      }
    }
  };
  replace(quick.axes, &Profile::axes);
  replace(quick.zip, &Profile::zip);
  return result;
}

}  // namespace

Definition parse_definition(const std::string& toml, const std::string& name, const std::string& file) {
  const toml::table root = parse_toml(toml, file);
  TomlTable table(root, file, "an experiment's definition");
  Definition result;
  result.name = name;
  result.file = file;
  result.toml = toml;
  result.title = table.required_text("title");
  result.kind = table.required_text("kind");
  result.description = table.text("description").value_or("");
  result.reproduce = table.flag("reproduce").value_or(false);

  const Kind* kind = nullptr;
  try {
    kind = &find_kind(result.kind);
  } catch (const InvalidArgument& error) {
    table.fail(*table.find("kind"), error.what());
  }
  const Reader reader{file, *kind};
  result.full = reader.profile(table, "");
  reader.require_equal_lengths(root, result.full, "[zip]");
  result.quick = result.full;
  if (const toml::table* quick = table.table("quick")) {
    TomlTable quick_table(*quick, file, "[quick]");
    result.quick = overlaid(result.full, reader.profile(quick_table, "quick."));
    quick_table.finish();
    reader.require_equal_lengths(root, result.quick, "[zip] as [quick.zip] changes it");
  }
  for (const toml::table* expect : table.tables("expect"))
    result.expectations.push_back(reader.expectation(*expect));
  table.finish();
  return result;
}

Definition read_definition(const std::string& path) {
  const std::string text = read_text_file("the experiment's definition", path, kMostTomlBytes);
  return parse_definition(text, fs::path(path).stem().string(), path);
}

}  // namespace splash::experiments
