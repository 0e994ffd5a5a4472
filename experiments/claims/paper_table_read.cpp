#include <algorithm>
#include <limits>
#include <map>

#include "core/text_file.h"
#include "experiments/claims/paper_table.h"
#include "experiments/runner/toml_value.h"

namespace splash::experiments {
namespace {

Value value_of(TomlTable& table, const toml::node& node) {
  const auto value = scalar_of(node);
  if (!value) table.fail(node, "a value is a number, a text, true or false");
  return *value;
}

std::vector<std::string> texts_of(TomlTable& table, const std::string& key) {
  std::vector<std::string> texts;
  const toml::node* node = table.find(key);
  if (node == nullptr) return texts;
  const toml::array* list = node->as_array();
  if (list == nullptr || list->empty() || !list->is_homogeneous(toml::node_type::string))
    table.fail(*node, fmt::format("'{}' must be a list of texts", key));
  for (const toml::node& text : *list) texts.push_back(*text.value<std::string>());
  return texts;
}

// The lists of a table in the order of the file, each of `length` values (0: of the first list's). One value
// stands for all.
std::vector<Axis> lists_of(TomlTable& table, const std::string& key, std::size_t length) {
  std::vector<Axis> lists;
  const toml::table* raw = table.table(key);
  if (raw == nullptr) return lists;
  std::vector<std::pair<const toml::key*, const toml::node*>> entries;
  for (const auto& [name, node] : *raw) entries.emplace_back(&name, &node);
  std::ranges::sort(entries, {}, [](const auto& entry) {
    return std::pair(entry.first->source().begin.line, entry.first->source().begin.column);
  });
  for (const auto& [name, node] : entries) {
    Axis list{std::string(name->str()), {}};
    if (const toml::array* values = node->as_array()) {
      for (const toml::node& value : *values) list.values.push_back(value_of(table, value));
    } else {
      list.values.assign(std::max<std::size_t>(length, 1), value_of(table, *node));
    }
    if (length == 0) length = list.values.size();
    if (length == 0 || list.values.size() != length)
      table.fail(*node, fmt::format("'{}' has {} values, where the table has {} rows", list.name,
                                    list.values.size(), length));
    lists.push_back(std::move(list));
  }
  return lists;
}

double scale_of(TomlTable& table, const std::string& unit) {
  static const std::map<std::string, double> kScales{
      {"1", 1}, {"s", 1}, {"ms", 1e-3}, {"us", 1e-6}, {"MiB", 1048576}};
  const auto found = kScales.find(unit);
  if (found == kScales.end())
    table.fail(*table.find("unit"), fmt::format("'unit' is s, ms, us, MiB or 1, not '{}'", unit));
  return found->second;
}

PaperSeries read_series(const toml::table& raw, const std::string& file, std::size_t rows) {
  TomlTable table(raw, file, "[[table.series]]");
  PaperSeries series;
  series.name = table.required_text("name");
  series.ours = texts_of(table, "ours");
  series.differs = table.text("differs").value_or("");
  series.why = series.ours.empty() ? table.required_text("why") : "";
  const toml::node* values = table.find("values");
  const toml::array* list = values == nullptr ? nullptr : values->as_array();
  if (list == nullptr || list->size() != rows)
    table.fail(raw, fmt::format("series '{}' needs 'values', a list of {} numbers", series.name, rows));
  for (const toml::node& value : *list) {
    if (!value.is_number()) table.fail(value, fmt::format("a value of '{}' is not a number", series.name));
    series.values.push_back(*value.value<double>());
  }
  table.finish();
  return series;
}

PaperTable read_table(const toml::table& raw, const std::string& file, const std::string& paper) {
  TomlTable table(raw, file, "[[table]]");
  PaperTable result;
  result.paper = paper;
  result.name = table.required_text("name");
  result.title = table.required_text("title");
  result.place = table.required_text("place");
  result.gpu = table.text("gpu").value_or("");
  result.unit = table.required_text("unit");
  result.scale = scale_of(table, result.unit);
  result.column = table.required_text("column");
  result.experiment = table.required_text("experiment");
  result.by = table.text("by").value_or("implementation");
  result.over = table.text("over").value_or("");
  result.reports = texts_of(table, "reports");
  result.not_stated = texts_of(table, "not_stated");
  if (const toml::table* stated = table.table("stated"))
    for (const auto& [name, node] : *stated) result.stated[std::string(name.str())] = value_of(table, node);
  result.rows = lists_of(table, "rows", 0);
  if (result.rows.empty()) table.fail(raw, fmt::format("table '{}' lacks 'rows'", result.name));
  const std::size_t rows = result.rows.front().values.size();
  result.ours = lists_of(table, "ours", rows);
  bool has_over = result.over.empty();
  for (const toml::table* series : table.tables("series")) {
    result.series.push_back(read_series(*series, file, rows));
    has_over = has_over || (result.series.back().name == result.over && !result.series.back().ours.empty());
  }
  if (!has_over)
    table.fail(raw, fmt::format("'over' names '{}', which is no series with 'ours'", result.over));
  table.finish();
  return result;
}

}  // namespace

std::vector<PaperTable> parse_paper_tables(const std::string& toml, const std::string& file) {
  const toml::table root = parse_toml(toml, file);
  TomlTable table(root, file, "a file of a paper's tables");
  const std::string paper = table.required_text("paper");
  std::vector<PaperTable> tables;
  for (const toml::table* raw : table.tables("table")) tables.push_back(read_table(*raw, file, paper));
  table.finish();
  return tables;
}

std::vector<PaperTable> read_paper_tables(const std::string& folder) {
  std::vector<PaperTable> all;
  for (const std::string& path : definition_files(folder)) {
    for (PaperTable& table :
         parse_paper_tables(read_text_file("a paper's tables", path, kMostTomlBytes), path)) {
      if (std::ranges::any_of(all, [&](const PaperTable& other) { return other.name == table.name; }))
        throw InvalidArgument(fmt::format("{}: there are two tables '{}'", path, table.name));
      all.push_back(std::move(table));
    }
  }
  return all;
}

}  // namespace splash::experiments
