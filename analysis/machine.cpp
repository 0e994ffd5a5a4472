#include "analysis/machine.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <map>

#include "core/text_file.h"
#include "core/toml_table.h"

namespace splash::analysis {
namespace {

namespace fs = std::filesystem;

struct KnownCeiling {
  const char* name;
  const char* units;
  std::vector<std::string> dtypes;
};

const std::vector<KnownCeiling>& known_ceilings() {
  static const std::vector<KnownCeiling> known{
      {"dram", "bytes/s", {""}},        {"l2 read", "bytes/s", {""}},
      {"shared read", "bytes/s", {""}}, {"fma", "FLOP/s", {"float32"}},
      {"exponentials", "1/s", {""}},    {"tensor", "FLOP/s", {"tf32", "float16", "bfloat16", "float8_e4m3"}},
  };
  return known;
}

// Peaks beyond these limits have a wrong exponent; no machine of today lies outside.
constexpr double kLeast = 1e9, kMost = 1e17;

void require_one_of(TomlTable& table, const std::string& key, const std::string& value,
                    const std::vector<std::string>& allowed) {
  if (std::find(allowed.begin(), allowed.end(), value) != allowed.end()) return;
  const toml::node* node = table.find(key);
  table.fail(node != nullptr ? *node : static_cast<const toml::node&>(table.raw()),
             fmt::format("'{}' cannot be \"{}\"{}", key, value, suggestion(value, allowed)));
}

DatasheetPeak read_peak(const toml::table& raw, const std::string& file) {
  TomlTable table(raw, file, "[[peak]]");
  DatasheetPeak peak;
  peak.ceiling = table.required_text("ceiling");
  std::vector<std::string> names;
  for (const KnownCeiling& known : known_ceilings()) names.emplace_back(known.name);
  require_one_of(table, "ceiling", peak.ceiling, names);
  const KnownCeiling& known = *std::find_if(known_ceilings().begin(), known_ceilings().end(),
                                            [&](const KnownCeiling& c) { return c.name == peak.ceiling; });
  peak.dtype = table.text("dtype").value_or("");
  require_one_of(table, "dtype", peak.dtype, known.dtypes);
  const auto value = table.number("value");
  if (!value) table.fail(raw, "[[peak]] lacks 'value', a number");
  if (!(*value >= kLeast && *value <= kMost)) {
    table.fail(*table.find("value"),
               fmt::format("'value' is {:g}; no GPU has such a peak, which is between {:g} and {:g}", *value,
                           kLeast, kMost));
  }
  peak.value = *value;
  peak.units = table.required_text("units");
  require_one_of(table, "units", peak.units, {known.units});
  peak.source = table.required_text("source");
  if (peak.source.empty())
    table.fail(*table.find("source"), "'source' is empty; it must say where the value is printed");
  table.finish();
  return peak;
}

// A table of whole numbers with the source that prints them. Today's GPUs lie far below `most`.
class Counts {
 public:
  Counts(TomlTable& machine, const char* name, const std::string& file)
      : name_(name), table_(*required(machine, name), file, fmt::format("[{}]", name)) {}

  int64_t operator()(const char* key, int64_t most = 1 << 24) {
    const toml::node* node = table_.find(key);
    if (node == nullptr) table_.fail(table_.raw(), fmt::format("[{}] lacks '{}'", name_, key));
    const auto value = node->value_exact<int64_t>();
    if (!value || *value < 1 || *value > most)
      table_.fail(*node, fmt::format("'{}' must be a whole number from 1 to {}", key, most));
    return *value;
  }
  // 0 if the key is missing.
  int64_t if_told(const char* key, int64_t most) {
    return table_.find(key) == nullptr ? 0 : (*this)(key, most);
  }
  void finish() {
    if (table_.required_text("source").empty())
      table_.fail(*table_.find("source"), "'source' is empty; it must say where the numbers are printed");
    table_.finish();
  }

 private:
  static const toml::table* required(TomlTable& machine, const char* name) {
    const toml::table* raw = machine.table(name);
    if (raw == nullptr) machine.fail(machine.raw(), fmt::format("the machine lacks the table [{}]", name));
    return raw;
  }

  const char* name_;
  TomlTable table_;
};

void read_multiprocessors(TomlTable& table, const std::string& file, Machine& machine) {
  Counts counts(table, "multiprocessors", file);
  machine.compute_capability = static_cast<int>(counts("compute_capability", 999));
  machine.multiprocessors = {.count = static_cast<int>(counts("count")),
                             .warps = static_cast<int>(counts("warps")),
                             .blocks = static_cast<int>(counts("blocks")),
                             .registers = static_cast<int>(counts("registers")),
                             .shared_bytes = counts("shared_bytes"),
                             .exponentials = static_cast<int>(counts.if_told("exponentials", 1024))};
  machine.l1_bytes = counts("l1_bytes");
  machine.multiprocessors.share_as(machine.compute_capability);
  if (machine.l1_bytes < machine.multiprocessors.shared_bytes) {
    table.fail(table.raw(), fmt::format("'l1_bytes' is {}, less than 'shared_bytes', which it includes",
                                        machine.l1_bytes));
  }
  counts.finish();
}

L2Size read_l2(TomlTable& machine, const std::string& file) {
  Counts counts(machine, "l2", file);
  const L2Size result{.bytes = counts("bytes", int64_t{1} << 30),
                      .partitions = static_cast<int>(counts("partitions", 2))};
  counts.finish();
  return result;
}

std::vector<std::string> read_devices(TomlTable& table) {
  const toml::node* node = table.find("devices");
  if (node == nullptr)
    table.fail(table.raw(), "the machine lacks 'devices', the names that the driver gives it");
  std::vector<std::string> devices;
  const toml::array* array = node->as_array();
  if (array != nullptr) {
    for (const toml::node& element : *array) {
      if (const auto* text = element.as_string()) devices.push_back(text->get());
    }
  }
  if (array == nullptr || devices.empty() || devices.size() != array->size())
    table.fail(*node, "'devices' must be a list of names, at least one");
  return devices;
}

}  // namespace

double Machine::peak(const std::string& ceiling, const std::string& dtype) const {
  const std::string wanted = ceiling == "dram copy" || ceiling == "dram read" ? "dram" : ceiling;
  for (const DatasheetPeak& peak : peaks) {
    if (peak.ceiling == wanted && peak.dtype == dtype) return peak.value;
  }
  return std::numeric_limits<double>::quiet_NaN();
}

Machine parse_machine(const std::string& toml, const std::string& file) {
  const toml::table root = parse_toml(toml, file);
  TomlTable table(root, file, "the machine");
  Machine machine;
  machine.name = table.required_text("name");
  machine.devices = read_devices(table);
  read_multiprocessors(table, file, machine);
  machine.l2 = read_l2(table, file);
  for (const toml::table* raw : table.tables("peak")) {
    DatasheetPeak peak = read_peak(*raw, file);
    if (!std::isnan(machine.peak(peak.ceiling, peak.dtype))) {
      table.fail(*raw, fmt::format("the peak of '{}'{} is there twice", peak.ceiling,
                                   peak.dtype.empty() ? "" : " in " + peak.dtype));
    }
    machine.peaks.push_back(std::move(peak));
  }
  if (machine.peaks.empty()) table.fail(root, "the machine has no [[peak]]");
  table.finish();
  return machine;
}

std::vector<Machine> read_machines(const std::string& folder) {
  std::error_code error;
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (entry.path().extension() == ".toml") files.push_back(entry.path());
  }
  if (error)
    throw InvalidArgument(fmt::format("cannot read the machines in {}: {}", folder, error.message()));
  std::sort(files.begin(), files.end());
  std::vector<Machine> machines;
  std::map<std::string, std::string> claimed;  // device -> file
  for (const fs::path& path : files) {
    machines.push_back(
        parse_machine(read_text_file("the machine", path.string(), kMostTomlBytes), path.string()));
    for (const std::string& device : machines.back().devices) {
      const auto [other, is_new] = claimed.emplace(device, path.string());
      if (!is_new)
        throw InvalidArgument(
            fmt::format("{} and {} both describe '{}'", other->second, path.string(), device));
    }
  }
  return machines;
}

std::optional<Machine> find_machine(const std::string& device, const std::vector<Machine>& machines) {
  for (const Machine& machine : machines) {
    if (std::find(machine.devices.begin(), machine.devices.end(), device) != machine.devices.end())
      return machine;
  }
  return std::nullopt;
}

Machine machine_of(const std::string& device, const std::vector<Machine>& machines) {
  if (std::optional<Machine> machine = find_machine(device, machines)) return *std::move(machine);
  throw InvalidArgument(fmt::format("no file of data/machines describes the GPU '{}'", device));
}

bool are_all(std::string gpus, const std::string& name) {
  while (gpus.starts_with(name + "; ")) gpus.erase(0, name.size() + 2);
  return gpus == name;
}

}  // namespace splash::analysis
