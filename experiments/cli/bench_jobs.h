#pragma once
// What `splash bench` was asked for, and the cases that it runs for that.

#include <string>
#include <vector>

#include "experiments/cli/command.h"
#include "experiments/foreign/bench_report.h"

namespace splash::cli {

struct BenchAsked {
  std::string source, cache = "cold", ceilings, out, solution, workloads, traces;
  Words sizes, flags;  // "n=1024,2048"; further words for the compiler
  experiments::BenchOptions options;
  bool json = false, no_counts = false;
};

struct BenchRun {
  std::vector<experiments::BenchedCase> cases;
  std::vector<report::Ceiling> ceilings;
  std::string traces;        // of flashinfer-bench, a line each
  bool all_believed = true;  // and all were run
};

// Builds the kernel and runs it for every combination of sizes, or every workload, one after another. Throws
// Error or InvalidArgument, one sentence; if traces are asked for, a workload that fails is told in its trace
// instead.
BenchRun run_bench(const BenchAsked& asked);

}  // namespace splash::cli
