#pragma once
// Tables in the layout that Nsight Compute 2022.1 to 2025.3 print with --csv: the details page, whose rows of
// metrics end behind the value and a comma, the raw page and the summary per kernel.

#include <algorithm>
#include <map>
#include <string>
#include <vector>

namespace splash::analysis::testing {

struct Printed {
  std::string section, name, unit, value;
};

struct PrintedLaunch {
  std::string id = "0", process = "4711", name = "saxpy(int, float, const float *, float *)";
  std::string block = "(256, 1, 1)", grid = "(65536, 1, 1)";
  std::vector<Printed> metrics{};
};

inline bool tells(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

using Table = std::vector<std::vector<std::string>>;

inline std::vector<std::string> launch_names() {
  return {"ID",     "Process ID", "Process Name", "Host Name", "Kernel Name", "Context",
          "Stream", "Block Size", "Grid Size",    "Device",    "CC"};
}

inline std::vector<std::string> launch_fields(const PrintedLaunch& launch) {
  return {launch.id, launch.process, "app",       "127.0.0.1", launch.name, "1",
          "7",       launch.block,   launch.grid, "0",         "9.0"};
}

inline Table details_page(const std::vector<PrintedLaunch>& launches) {
  Table table{launch_names()};
  for (const char* name : {"Section Name", "Metric Name", "Metric Unit", "Metric Value", "Rule Name",
                           "Rule Type", "Rule Description", "Estimated Speedup Type", "Estimated Speedup"})
    table[0].emplace_back(name);
  for (const PrintedLaunch& launch : launches) {
    for (const Printed& metric : launch.metrics) {
      table.push_back(launch_fields(launch));
      for (const std::string& field : {metric.section, metric.name, metric.unit, metric.value})
        table.back().push_back(field);
      table.back().emplace_back();
    }
    table.push_back(launch_fields(launch));  // a rule has no metric
    for (const char* field :
         {"SpeedOfLight", "", "", "", "SOLBottleneck", "OPT", "a rule, \"quoted\"", "global", "12.5"})
      table.back().emplace_back(field);
  }
  return table;
}

// All launches have the metrics of the first.
inline Table raw_page(const std::vector<PrintedLaunch>& launches) {
  Table table{launch_names(), std::vector<std::string>(launch_names().size())};
  for (const Printed& metric : launches.front().metrics) {
    table[0].push_back(metric.name);
    table[1].push_back(metric.unit);
  }
  for (const PrintedLaunch& launch : launches) {
    table.push_back(launch_fields(launch));
    for (const Printed& metric : launch.metrics) table.back().push_back(metric.value);
  }
  return table;
}

inline std::string csv(const Table& table, const std::string& separator = ",") {
  std::string text;
  for (const auto& row : table) {
    for (std::size_t i = 0; i < row.size(); ++i) {
      std::string field = row[i];
      for (std::size_t at = 0; (at = field.find('"', at)) != std::string::npos; at += 2)
        field.insert(at, 1, '"');
      text += (i == 0 ? "\"" : separator + "\"") + field + "\"";
    }
    text += "\n";
  }
  return text;
}

// What a default run (`--set basic`) prints of a kernel that DRAM bounds, and the bandwidth of `--set full`.
inline std::vector<Printed> streaming_labels(const std::string& us = "181.25") {
  const std::string sol = "GPU Speed Of Light Throughput";
  return {{sol, "DRAM Frequency", "Ghz", "3.20"},
          {sol, "SM Frequency", "Ghz", "1.75"},
          {sol, "Elapsed Cycles", "cycle", "317,190"},
          {sol, "Memory Throughput", "%", "92.10"},
          {sol, "DRAM Throughput", "%", "92.10"},
          {sol, "Duration", "us", us},
          {sol, "L1/TEX Cache Throughput", "%", "25.04"},
          {sol, "L2 Cache Throughput", "%", "40.12"},
          {sol, "Compute (SM) Throughput", "%", "12.01"},
          {"Memory Workload Analysis", "Memory Throughput", "Tbyte/s", "4.44"},
          {"Launch Statistics", "Registers Per Thread", "register/thread", "16"},
          {"Launch Statistics", "Dynamic Shared Memory Per Block", "byte/block", "0"},
          {"Launch Statistics", "Static Shared Memory Per Block", "byte/block", "0"},
          {"Launch Statistics", "# SMs", "SM", "132"},
          {"Occupancy", "Theoretical Occupancy", "%", "100"},
          {"Occupancy", "Achieved Occupancy", "%", "88.51"}};
}

// The same by the names of the metrics, as the raw page has them.
inline std::vector<Printed> streaming_metrics(const std::string& us = "181.25") {
  return {{"", "gpu__time_duration.sum", "us", us},
          {"", "sm__cycles_elapsed.avg.per_second", "Ghz", "1.75"},
          {"", "dram__bytes_read.sum", "Mbyte", "536.87"},
          {"", "dram__bytes_write.sum", "Mbyte", "268.13"},
          {"", "dram__throughput.avg.pct_of_peak_sustained_elapsed", "%", "92.10"},
          {"", "lts__throughput.avg.pct_of_peak_sustained_elapsed", "%", "40.12"},
          {"", "l1tex__throughput.avg.pct_of_peak_sustained_elapsed", "%", "25.04"},
          {"", "sm__throughput.avg.pct_of_peak_sustained_elapsed", "%", "12.01"},
          {"", "smsp__inst_executed.sum", "inst", "5,767,168"},
          {"", "launch__registers_per_thread", "register/thread", "16"},
          {"", "launch__shared_mem_per_block_dynamic", "byte/block", "0"},
          {"", "launch__shared_mem_per_block_static", "byte/block", "0"},
          {"", "launch__sm_count", "SM", "132"}};
}

}  // namespace splash::analysis::testing
