#pragma once
// The steps of decode in a report of the kind gpu-decode: as cases whose counters a profiler tells, and what
// each read beside the time that it took.

#include <string>
#include <vector>

#include "analysis/decode_bytes.h"
#include "analysis/roofline.h"

namespace splash::analysis {

// Whether the report holds such steps.
bool holds_decode_steps(const report::Report& report);

// The steps that were run, in the report's order, without peers. Only their DRAM bytes are counted: FLOPs and
// L2 bytes are NaN. Nothing declares their kernels' geometry (use.blocks is 0), so a profiler's table must be
// of one step. Throws ReportError if the report lacks the columns.
std::vector<KernelCase> decode_steps(const report::Report& report);

// A step and what it read. Shares are of keys, over all sequences and key heads.
struct StepReading {
  KernelCase step;
  DecodeBytes bytes{};      // counted, by part
  double dense_bytes = 0;   // of dense attention on the same problem
  double floor = 0;         // seconds of the bytes at DRAM's measured ceiling; NaN: not known
  double candidates = 0;    // of the screened keys, those that were listed
  double rescored = 0;      // of the screened keys, those that were scored exactly at the end
  double fell_back = 0;     // of all keys, those that the dense pass scored
  double support_mean = 0;  // keys with p > 0 a row
};
// Of decode_steps(), in their order. Throws ReportError if the report lacks the columns.
std::vector<StepReading> step_readings(const report::Report& report);

// Seconds of a step as fixed + bytes / rate: the line through the steps of one implementation with the least
// squared relative errors; steps with broad rows are left out. NaN if there are fewer than three steps, or
// their bytes lie within a factor of 4.
struct StepLine {
  double fixed = 0, rate = 0;
  int64_t steps = 0;
};
StepLine line_through(const std::vector<StepReading>& readings, const std::string& implementation);

// What a step's time goes into, and the most that it could gain without it.
struct StepFinding {
  std::string cause;  // "beyond DRAM", "DRAM" or "broad rows"
  double gain = 1;
  std::string sentence;
};
// The largest gain first. line: of the step's implementation.
std::vector<StepFinding> findings_of(const StepReading& reading, const StepLine& line);

}  // namespace splash::analysis
