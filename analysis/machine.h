#pragma once
// What vendors print about their GPUs: data/machines/*.toml, one GPU a file.

#include <optional>
#include <string>
#include <vector>

#include "analysis/cache/cache.h"
#include "analysis/occupancy.h"
#include "core/error.h"

namespace splash::analysis {

// One printed figure. "dram" holds for reading and for copying (bytes read plus written).
struct DatasheetPeak {
  std::string ceiling;  // "dram", "l2 read", "shared read", "fma", "exponentials", "tensor"
  std::string dtype;    // of fma and tensor
  double value = 0;
  std::string units;   // "bytes/s", "FLOP/s" or "1/s"
  std::string source;  // where it is printed, and how
};

struct Machine {
  std::string name;
  std::vector<std::string> devices;  // the names that the driver gives it
  int compute_capability = 0;        // 90 is 9.0
  Multiprocessors multiprocessors{};
  int64_t l1_bytes = 0;  // of a multiprocessor, shared memory included
  L2Size l2{};
  std::vector<DatasheetPeak> peaks;

  // The printed figure, or NaN if the data sheet has none. `ceiling` is named as in gpu::MeasuredCeiling.
  double peak(const std::string& ceiling, const std::string& dtype) const;
};

// Throws InvalidArgument, one sentence with file and line, if something is missing, unknown or impossible.
Machine parse_machine(const std::string& toml, const std::string& file);

// Reads every file of the folder. Also throws InvalidArgument if the folder cannot be read or if two files
// claim one device.
std::vector<Machine> read_machines(const std::string& folder);

// The machine that claims the device, named as the driver names it. If none does, find_machine() returns
// nothing and machine_of() throws InvalidArgument.
std::optional<Machine> find_machine(const std::string& device, const std::vector<Machine>& machines);
Machine machine_of(const std::string& device, const std::vector<Machine>& machines);

// Whether all GPUs of a host, "A; B" as a report's provenance names them, are of this name.
bool are_all(std::string gpus, const std::string& name);

}  // namespace splash::analysis
