#include "analysis/ncu_csv.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <limits>

#include <fmt/format.h>

#include "core/checked.h"
#include "core/error.h"
#include "core/text_file.h"

namespace splash::analysis {
namespace {

using Row = std::vector<std::string>;

struct Unit {
  const char* name;
  Quantity quantity;
  double factor;
};

// ncu scales by powers of 1000: 11,105,984 sectors of 32 bytes are 355.391488 Mbyte.
constexpr Unit kUnits[] = {
    {"byte", Quantity::bytes, 1},         {"sector", Quantity::sectors, 1},
    {"sectors", Quantity::sectors, 1},    {"inst", Quantity::count, 1},
    {"register", Quantity::count, 1},     {"", Quantity::count, 1},
    {"", Quantity::sectors, 1},           {"%", Quantity::share, 0.01},
    {"second", Quantity::seconds, 1},     {"s", Quantity::seconds, 1},
    {"msecond", Quantity::seconds, 1e-3}, {"ms", Quantity::seconds, 1e-3},
    {"usecond", Quantity::seconds, 1e-6}, {"us", Quantity::seconds, 1e-6},
    {"nsecond", Quantity::seconds, 1e-9}, {"ns", Quantity::seconds, 1e-9},
};

std::optional<double> factor_of(const std::string& unit, Quantity quantity) {
  const auto known = [&](const std::string& name) -> std::optional<double> {
    for (const Unit& u : kUnits) {
      if (u.name == name && u.quantity == quantity) return u.factor;
    }
    return std::nullopt;
  };
  // The part after the slash does not change the number: "Kbyte/block", "register/thread".
  std::string name = unit;
  for (const char* per : {"/block", "/thread"}) {
    if (name.ends_with(per)) name.resize(name.size() - std::string(per).size());
  }
  if (const auto plain = known(name)) return plain;
  constexpr std::pair<char, double> kPrefixes[] = {{'K', 1e3}, {'M', 1e6}, {'G', 1e9}, {'T', 1e12}};
  for (const auto& [letter, scale] : kPrefixes) {
    if (name.size() < 2 || name[0] != letter) continue;
    if (const auto base = known(name.substr(1))) return scale * *base;
  }
  return std::nullopt;
}

const char* units_of(Quantity quantity) {
  switch (quantity) {
    case Quantity::bytes:
      return "byte to Tbyte";
    case Quantity::sectors:
      return "sector to Tsector";
    case Quantity::seconds:
      return "ns, us, ms or s";
    case Quantity::share:
      return "%";
    case Quantity::count:
      return "inst, register or none";
  }
  return "";
}

// The product of the numbers in "(256, 1, 1)"; 0 if the text is no such list or the product exceeds 63 bits.
int64_t volume(const std::string& extents) {
  std::vector<int64_t> factors;
  for (std::size_t at = 0; at < extents.size();) {
    if (std::isdigit(static_cast<unsigned char>(extents[at])) == 0) {
      ++at;
      continue;
    }
    int64_t extent = 0;
    const auto end = std::from_chars(extents.data() + at, extents.data() + extents.size(), extent);
    if (end.ec != std::errc()) return 0;
    factors.push_back(extent);
    at = static_cast<std::size_t>(end.ptr - extents.data());
  }
  return factors.empty() ? 0 : checked_product(factors).value_or(0);
}

int as_int(int64_t count) {  // 0 if the count is no int
  return count <= std::numeric_limits<int>::max() ? static_cast<int>(count) : 0;
}

// The columns of a table, by name.
class Header {
 public:
  explicit Header(const Row& names) : names_(names) {}

  bool has(const std::string& name) const {
    return std::find(names_.begin(), names_.end(), name) != names_.end();
  }
  std::string at(const Row& row, const std::string& name) const {
    const auto found = std::find(names_.begin(), names_.end(), name);
    return found == names_.end() ? "" : row[static_cast<std::size_t>(found - names_.begin())];
  }

 private:
  const Row& names_;
};

NcuKernel kernel_of(const Header& header, const Row& row) {
  NcuKernel kernel;
  kernel.name = header.at(row, "Kernel Name");
  kernel.blocks = volume(header.at(row, "Grid Size"));
  kernel.threads = as_int(volume(header.at(row, "Block Size")));
  return kernel;
}

// Older versions list grid and block only among the metrics.
void complete_launch(NcuKernel& kernel) {
  const auto first = [&](const char* metric, const char* label) -> int64_t {
    const auto value = kernel.get(metric, Quantity::count);
    return checked_count((value ? value : kernel.get(label, Quantity::count)).value_or(0)).value_or(0);
  };
  if (kernel.blocks == 0) kernel.blocks = first("launch__grid_size", "Grid Size");
  if (kernel.threads == 0) kernel.threads = as_int(first("launch__block_size", "Block Size"));
}

// Whether a metric is a count. A count is a whole number, unless its unit is scaled.
bool counts(const std::string& metric, const std::string& unit) {
  const bool counter = metric.ends_with(".sum") || metric.starts_with("launch__") || metric == "Grid Size" ||
                       metric == "Block Size";
  return counter && (factor_of(unit, Quantity::bytes) == 1 || factor_of(unit, Quantity::sectors) == 1 ||
                     factor_of(unit, Quantity::count) == 1);
}

// False for the columns beside the metrics. Their numbers do not follow the locale.
bool is_metric(const std::string& name) {
  constexpr std::array kOthers{"ID", "Process ID", "Context", "Stream", "Device", "CC"};
  return std::find(kOthers.begin(), kOthers.end(), name) == kOthers.end();
}

void mark_numbers(std::vector<NcuKernel>& kernels) {
  std::vector<NcuText> values;
  for (const NcuKernel& kernel : kernels) {
    for (const auto& [name, metric] : kernel.metrics) {
      if (!is_metric(name)) continue;
      values.push_back({metric.value, counts(name, metric.unit)});
    }
  }
  const DecimalMark mark = decimal_mark(values);
  for (NcuKernel& kernel : kernels) {
    for (auto& [name, metric] : kernel.metrics) metric.mark = mark;
  }
}

std::vector<NcuKernel> kernels_of(const std::vector<Row>& table) {
  const Row& names = table.front();
  const Header header(names);
  std::vector<NcuKernel> kernels;
  if (header.has("Metric Name")) {
    std::string last;
    for (auto row = table.begin() + 1; row != table.end(); ++row) {
      if (row->size() != names.size()) continue;  // a line that the profiler or the program printed
      const std::string id = header.at(*row, "Process ID") + " " + header.at(*row, "ID");
      if (kernels.empty() || id != last) kernels.push_back(kernel_of(header, *row));
      last = id;
      const std::string metric = header.at(*row, "Metric Name");  // empty in the row of a rule
      if (metric.empty()) continue;
      kernels.back().metrics[metric] = {.value = header.at(*row, "Metric Value"),
                                        .unit = header.at(*row, "Metric Unit")};
    }
    return kernels;
  }
  if (table.size() < 2 || table[1].size() != names.size()) return kernels;
  const Row& units = table[1];
  for (auto row = table.begin() + 2; row != table.end(); ++row) {
    if (row->size() != names.size()) continue;
    kernels.push_back(kernel_of(header, *row));
    for (std::size_t i = 0; i < names.size(); ++i)
      kernels.back().metrics[names[i]] = {.value = (*row)[i], .unit = units[i]};
  }
  return kernels;
}

// The name without unnamed namespaces: "(anonymous namespace)::", "<unnamed>::", or "unnamed>::" where ncu
// cut it. In "kernel<unnamed>::Type>" the '<' opens the kernel's template arguments, and stays.
std::string without_unnamed(std::string name) {
  for (const std::string scope : {"(anonymous namespace)::", "unnamed>::"}) {
    for (std::size_t at = 0; (at = name.find(scope)) != std::string::npos;) {
      name.erase(at, scope.size());
      const bool opened = scope.front() == 'u' && at > 0 && name[at - 1] == '<';
      const bool of_template =
          opened && at > 1 &&
          (std::isalnum(static_cast<unsigned char>(name[at - 2])) != 0 || name[at - 2] == '_');
      if (opened && !of_template) name.erase(at - 1, 1);
    }
  }
  return name;
}

std::string refusal_in(const std::string& text) {
  constexpr const char* kMark = "==ERROR== ";
  const std::size_t at = text.find(kMark);
  if (at == std::string::npos) return "";
  const std::size_t begin = at + std::string(kMark).size();
  const std::size_t end = text.find_first_of("\r\n", begin);
  return text.substr(begin, end == std::string::npos ? end : end - begin);
}

}  // namespace

std::vector<std::vector<std::string>> parse_csv(const std::string& text) {
  std::vector<Row> rows;
  Row row;
  std::string field;
  bool quoted = false;
  const auto end_row = [&] {
    row.push_back(std::move(field));
    field.clear();
    if (row.size() > 1 || !row[0].empty()) rows.push_back(std::move(row));
    row.clear();
  };
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quoted) {
      if (c != '"') {
        field += c;
      } else if (i + 1 < text.size() && text[i + 1] == '"') {
        field += text[++i];
      } else {
        quoted = false;
      }
    } else if (c == '"' && field.empty()) {  // elsewhere a quote is an ordinary character
      quoted = true;
    } else if (c == ',') {
      row.push_back(std::move(field));
      field.clear();
    } else if (c == '\n') {
      end_row();
    } else if (c != '\r') {
      field += c;
    }
  }
  end_row();
  return rows;
}

std::string NcuKernel::function() const {
  // Keeps the name up to the parameters, without template arguments, scopes and the type of the result.
  const std::string whole = without_unnamed(name);
  std::string text;
  int depth = 0;
  for (const char c : whole) {
    if (c == '<') ++depth;
    if (depth == 0 && c == '(') break;
    if (depth == 0) text += c;
    if (c == '>') --depth;
  }
  const std::size_t scope = text.find_last_of(": ");
  return scope == std::string::npos ? text : text.substr(scope + 1);
}

std::optional<double> NcuKernel::get(const std::string& metric, Quantity quantity) const {
  const auto found = metrics.find(metric);
  if (found == metrics.end()) return std::nullopt;
  const auto& [value, unit, mark] = found->second;
  if (value.empty() || value == "n/a" || value == "N/A" || value == "no data" || value == "(!) n/a")
    return std::nullopt;
  const auto number = number_from(value, mark);
  if (!number)
    throw InvalidArgument(fmt::format("the value '{}' of the metric {} is no number", value, metric));
  const auto factor = factor_of(unit, quantity);
  if (!factor) {
    throw InvalidArgument(fmt::format("the metric {} comes in the unit '{}', which is none of {}", metric,
                                      unit, units_of(quantity)));
  }
  return *number * *factor;
}

NcuResults parse_ncu(const std::string& text) {
  NcuResults results;
  // The table begins at the line that starts with its first column's name.
  std::size_t begin = 0;
  while (text.compare(begin, 4, "\"ID\"") != 0 && text.compare(begin, 3, "ID,") != 0) {
    begin = text.find('\n', begin);
    if (begin == std::string::npos) break;
    ++begin;
  }
  if (begin != std::string::npos) results.kernels = kernels_of(parse_csv(text.substr(begin)));
  mark_numbers(results.kernels);
  for (NcuKernel& kernel : results.kernels) complete_launch(kernel);
  if (!results.kernels.empty()) return results;
  results.refusal = refusal_in(text);
  if (results.refusal.empty()) {
    throw InvalidArgument(begin == std::string::npos
                              ? "there is no table of ncu --csv in it: no line begins with \"ID\""
                              : "the table of ncu --csv holds no kernel");
  }
  return results;
}

NcuResults read_ncu(const std::string& path) {
  constexpr int64_t kMostBytes = int64_t{1} << 30;
  const std::string text = read_text_file("ncu's table", path, kMostBytes);
  if (text.empty()) throw InvalidArgument(fmt::format("{} is empty", path));
  try {
    return parse_ncu(text);
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(fmt::format("{}: {}", path, error.what()));
  }
}

}  // namespace splash::analysis
