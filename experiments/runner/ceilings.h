#pragma once
// Measured ceilings of this machine's GPU, with the data sheet's values beside them, and of its processor.
// Measured once per process.
//
//   report.ceilings = measured_ceilings();
//   const double least_seconds = std::max(flops / matrix_rate("tf32"), bytes / dram_bandwidth());

#include <string>
#include <vector>

#include "cpu_ref/ceilings/ceilings.h"
#include "gpu/ceilings/ceilings.h"
#include "report/report.h"

namespace splash::experiments {

// Median and interval of each; the data sheet's value from data/machines, NaN where none is known. Takes up
// to 4 s. Throws DeviceError without the device, InvalidArgument where a file of data/machines is not right.
const std::vector<report::Ceiling>& measured_ceilings(int device = 0);

// "float32" (plain FMA), "tf32", "float16", "bfloat16" or "float8_e4m3" products on device 0, FLOP/s.
double matrix_rate(const std::string& dtype);
// The better of copying and reading, on device 0, bytes/s.
double dram_bandwidth();

// The measurement as a ceiling of a report; `datasheet` NaN where none is known.
report::Ceiling summarise(const gpu::MeasuredCeiling& measured, double datasheet);

// Of the processor, with all threads: the fastest of some short samples, and the interval from their median
// to it. No data sheets. Takes 2 s; call it first where nothing else runs on the threads.
const std::vector<report::Ceiling>& cpu_ceilings();
report::Ceiling summarise(const cpu_ref::MeasuredCeiling& measured);

}  // namespace splash::experiments
