#include "analysis/ncu_csv.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <limits>
#include <string_view>
#include <tuple>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/checked.h"
#include "core/error.h"
#include "core/text_file.h"

namespace splash::analysis {
namespace {

using Row = std::vector<std::string>;

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

bool is_whole_number(const std::string& text) {
  return !text.empty() &&
         std::all_of(text.begin(), text.end(), [](unsigned char c) { return std::isdigit(c) != 0; });
}

std::optional<int64_t> whole_number(const std::string& text) {
  int64_t number = 0;
  if (!is_whole_number(text)) return std::nullopt;
  const auto end = std::from_chars(text.data(), text.data() + text.size(), number);
  return end.ec == std::errc() ? std::optional(number) : std::nullopt;
}

bool is_header(const Row& row) {
  bool kernel = false, id = false, process = false;
  for (const std::string& field : row) {
    const std::string name = trimmed(field);
    kernel = kernel || name == "Kernel Name";
    id = id || name == "ID";
    process = process || name == "Process ID";
  }
  return row.size() > 1 && (kernel || (id && process));
}

// The columns of a table, by name.
class Header {
 public:
  explicit Header(const Row& names) {
    for (const std::string& name : names) names_.push_back(trimmed(name));
    while (!names_.empty() && names_.back().empty()) names_.pop_back();  // spreadsheets pad rows
    for (std::size_t i = 0; i < names_.size(); ++i) {
      const bool of_rules = names_[i].starts_with("Rule ") || names_[i].starts_with("Estimated Speedup");
      if (!of_rules) needed_ = i + 1;
    }
    std::vector<std::string> sorted;
    for (const std::string& name : names_) {
      if (is_metric(name)) continue;
      if (std::find(sorted.begin(), sorted.end(), name) != sorted.end())
        throw InvalidArgument(fmt::format("the table has two columns '{}'", name));
      sorted.push_back(name);
    }
  }

  // False for the columns beside the metrics. Their numbers do not follow the locale.
  static bool is_metric(const std::string& name) {
    constexpr std::array kOthers{"ID",        "Process ID",  "Process Name", "Host Name",    "Kernel Name",
                                 "Context",   "Stream",      "Block Size",   "Grid Size",    "Device",
                                 "CC",        "Kernel Time", "Invocations",  "Section Name", "Rule Name",
                                 "Rule Type", "Metric Name", "Metric Unit",  "Metric Value", "Minimum",
                                 "Maximum",   "Average"};
    return std::find(kOthers.begin(), kOthers.end(), name) == kOthers.end();
  }

  std::size_t size() const { return names_.size(); }
  const std::string& name(std::size_t at) const { return names_[at]; }
  bool has(const std::string& name) const {
    return std::find(names_.begin(), names_.end(), name) != names_.end();
  }
  std::string at(const Row& row, const std::string& name) const {
    const auto found = std::find(names_.begin(), names_.end(), name);
    const auto place = static_cast<std::size_t>(found - names_.begin());
    return found == names_.end() || place >= row.size() ? "" : trimmed(row[place]);
  }

  // Whether the row is one of the table. False for lines that the profiler or the program printed. Throws
  // InvalidArgument if it is one, but has too few fields or too many.
  bool fits(Row& row, bool last) const {
    while (row.size() > size() && trimmed(row.back()).empty()) row.pop_back();
    // On the details page a metric's row ends behind its value: it has no fields for the columns of rules.
    if (row.size() < size() && row.size() >= needed_) row.resize(size());
    if (row.size() == size()) return true;
    if (!whole_number(at(row, has("ID") ? "ID" : "Process ID")) || row.size() < 2) return false;
    throw InvalidArgument(fmt::format("a row of the table has {} fields where its header has {}{}: {}",
                                      row.size(), size(),
                                      last ? "; it is the last, so the file was cut off" : "",
                                      fmt::format("{}", fmt::join(row, ",")).substr(0, 80)));
  }

 private:
  Row names_;
  std::size_t needed_ = 0;  // fields of a row, up to the last column that is not of rules
};

// Tells launches apart. A table without ids tells them apart by name, grid and block alone.
using LaunchKey = std::tuple<std::string, std::string, int64_t, std::string, std::string, std::string>;

LaunchKey key_of(const Header& header, const Row& row) {
  const auto number = whole_number(header.at(row, "ID"));
  return {header.at(row, "Host Name"),
          fmt::format("{:>20}", header.at(row, "Process ID")),  // ordered as numbers are
          number.value_or(-1),
          header.at(row, "Kernel Name"),
          header.at(row, "Grid Size"),
          header.at(row, "Block Size") + header.at(row, "Device")};
}

NcuKernel kernel_of(const Header& header, const Row& row) {
  NcuKernel kernel;
  kernel.name = header.at(row, "Kernel Name");
  kernel.blocks = volume(header.at(row, "Grid Size"));
  kernel.threads = as_int(volume(header.at(row, "Block Size")));
  const std::string host = header.at(row, "Host Name"), process = header.at(row, "Process ID");
  const bool here = host.empty() || host == "127.0.0.1" || host == "localhost";
  kernel.process = here ? process : fmt::format("{} on {}", process, host);
  kernel.device = header.at(row, "Device");
  kernel.cc = header.at(row, "CC");
  kernel.id = whole_number(header.at(row, "ID"));
  if (header.has("Invocations"))
    kernel.invocations = std::max<int64_t>(1, whole_number(header.at(row, "Invocations")).value_or(1));
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
  constexpr std::array kLabels{"Grid Size",           "Block Size", "Elapsed Cycles", "Executed Instructions",
                               "Issued Instructions", "Threads"};
  const bool counter = metric.ends_with(".sum") || metric.starts_with("launch__") ||
                       std::find(kLabels.begin(), kLabels.end(), metric) != kLabels.end();
  return counter && (factor_of(unit, Quantity::bytes) == 1 || factor_of(unit, Quantity::sectors) == 1 ||
                     factor_of(unit, Quantity::count) == 1);
}

void mark_numbers(std::vector<NcuKernel>& kernels) {
  std::vector<NcuText> values;
  for (const NcuKernel& kernel : kernels) {
    for (const auto& [name, entries] : kernel.metrics) {
      for (const NcuMetric& metric : entries) {
        const bool whole = counts(name, metric.unit);
        values.push_back({metric.value, whole && kernel.invocations == 1});
        for (const std::string& end : {metric.least, metric.most}) values.push_back({end, whole});
      }
    }
  }
  const DecimalMark mark = decimal_mark(values);
  for (NcuKernel& kernel : kernels) {
    for (auto& [name, entries] : kernel.metrics) {
      for (NcuMetric& metric : entries) metric.mark = mark;
    }
  }
}

using Launches = std::map<LaunchKey, NcuKernel>;

NcuKernel& launch_of(Launches& launches, const Header& header, const Row& row) {
  const auto [entry, is_new] = launches.try_emplace(key_of(header, row));
  if (is_new) entry->second = kernel_of(header, row);
  return entry->second;
}

// One row per metric.
void read_long(const Header& header, const std::vector<Row>& rows, Launches& launches) {
  const bool summary = header.has("Average") && !header.has("Metric Value");
  for (const Row& row : rows) {
    NcuKernel& launch = launch_of(launches, header, row);
    const std::string metric = header.at(row, "Metric Name");  // empty in the row of a rule
    if (metric.empty()) continue;
    launch.metrics[metric].push_back(
        {.value = printed_value(header.at(row, summary ? "Average" : "Metric Value")),
         .unit = header.at(row, "Metric Unit"),
         .least = printed_value(header.at(row, "Minimum")),
         .most = printed_value(header.at(row, "Maximum"))});
  }
}

// One column per metric. The row of the units names no kernel.
void read_wide(const Header& header, const std::vector<Row>& rows, Launches& launches) {
  const Row* units = nullptr;
  const auto is_units = [&](const Row& row) {
    return header.at(row, "Kernel Name").empty() && header.at(row, "ID").empty();
  };
  for (const Row& row : rows) {
    if (!is_units(row)) continue;
    if (units != nullptr && *units != row)
      throw InvalidArgument("the table has two rows that name no kernel: one, of the units, is allowed");
    units = &row;
  }
  for (const Row& row : rows) {
    if (is_units(row)) continue;
    NcuKernel& launch = launch_of(launches, header, row);
    for (std::size_t i = 0; i < header.size(); ++i) {
      if (!Header::is_metric(header.name(i))) continue;
      launch.metrics[header.name(i)].push_back(
          {.value = printed_value(row[i]), .unit = units == nullptr ? "" : trimmed((*units)[i])});
    }
  }
}

bool begins_table(std::string_view line, char separator) {
  try {
    const std::vector<Row> rows = parse_csv(std::string(line), separator);
    return !rows.empty() && is_header(rows[0]);
  } catch (const InvalidArgument&) {  // a quote stays open: no header
    return false;
  }
}

// Where a table begins, and what separates its fields.
struct Begin {
  std::size_t at = std::string::npos;
  char separator = ',';
};

Begin table_begin(const std::string& text) {
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view line(text.data() + at, end - at);
    if (line.find("Kernel Name") != std::string_view::npos ||
        line.find("Process ID") != std::string_view::npos) {
      for (const char separator : {',', ';', '\t'}) {
        if (begins_table(line, separator)) return {at, separator};
      }
    }
    at = end + 1;
  }
  return {};
}

// A header within the rows begins another table: output of several runs, one behind the other.
std::vector<NcuKernel> kernels_of(const std::vector<Row>& all) {
  std::vector<NcuKernel> kernels;
  for (std::size_t begin = 0; begin < all.size();) {
    const Header header(all[begin]);
    std::size_t end = begin + 1;
    std::vector<Row> rows;
    for (; end < all.size() && !is_header(all[end]); ++end) {
      Row row = all[end];
      if (header.fits(row, end + 1 == all.size())) rows.push_back(std::move(row));
    }
    Launches launches;
    if (header.has("Metric Name")) {
      read_long(header, rows, launches);
    } else {
      read_wide(header, rows, launches);
    }
    for (auto& [key, launch] : launches) kernels.push_back(std::move(launch));
    begin = end;
  }
  return kernels;
}

// Why ncu printed no table, in its words: an error, or that nothing was there to be profiled.
std::string refusal_in(const std::string& text) {
  for (const std::string line : {"==ERROR== ", "==WARNING== No kernels"}) {
    const std::size_t at = text.find(line);
    if (at == std::string::npos) continue;
    const std::size_t begin = at + line.find(' ') + 1, end = text.find_first_of("\r\n", begin);
    return text.substr(begin, end == std::string::npos ? end : end - begin);
  }
  return "";
}

}  // namespace

NcuResults parse_ncu(const std::string& bytes) {
  const std::string text = table_text(bytes);
  NcuResults results;
  const auto [begin, separator] = table_begin(text);
  if (begin != std::string::npos) results.kernels = kernels_of(parse_csv(text.substr(begin), separator));
  mark_numbers(results.kernels);
  for (NcuKernel& kernel : results.kernels) complete_launch(kernel);
  if (!results.kernels.empty()) return results;
  results.refusal = refusal_in(text);
  if (!results.refusal.empty()) return results;
  if (begin != std::string::npos) throw InvalidArgument("the table of ncu --csv holds no kernel");
  if (text.find("    Section: ") != std::string::npos)
    throw InvalidArgument("it is what ncu prints for people; print the table with --csv");
  throw InvalidArgument(
      "there is no table of ncu --csv in it: no line names its columns, \"ID\" and \"Kernel Name\" among "
      "them");
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
