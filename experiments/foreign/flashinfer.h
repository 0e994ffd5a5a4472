#pragma once
// flashinfer-bench's formats (JSON): its workloads are read, and traces of what was benched are written.
// Definition and Solution are read where their code runs (python/splash_laboratory/kernels/flashinfer.py).

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "experiments/foreign/bench.h"

namespace splash::experiments {

struct FlashinferWorkload {
  std::string uuid;
  nlohmann::json workload;  // as the file has it
};

// One JSON object per line: a workload, or a trace that has one. Throws InvalidArgument, with the line, if
// the file cannot be read, if there is none or more than 10000, or if one is no object with uuid, axes and
// inputs.
std::vector<FlashinferWorkload> read_workloads(const std::string& path);

// A text of a definition or a solution: "name". Throws InvalidArgument.
std::string name_in(const std::string& path, const std::string& what);

// What came of a workload. `failure`: the sentence of what was thrown; then there is no result.
struct Evaluated {
  const BenchResult* result = nullptr;
  std::string failure{};
  std::string hardware, libraries{};
};

// A Trace. A kernel that was not believed has the status INCORRECT_NUMERICAL where its results are wrong,
// else RUNTIME_ERROR, as the format has no word for it; `log` holds the sentences.
nlohmann::json trace_of(const std::string& definition, const std::string& solution,
                        const FlashinferWorkload& workload, const Evaluated& evaluated,
                        const std::string& timestamp);

}  // namespace splash::experiments
