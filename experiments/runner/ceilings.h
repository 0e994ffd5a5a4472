#pragma once
// Measured ceilings of this machine's GPU and processor, each measured once per process. The GPU's come with
// the data sheet's values.
//
//   report.ceilings = measured_ceilings();

#include <string>
#include <vector>

#include "cpu_ref/ceilings/ceilings.h"
#include "gpu/ceilings/ceilings.h"
#include "report/report.h"

namespace splash::experiments {

// Each with its median and interval, and the data sheet's value from data/machines, NaN if none is known.
// Takes up to 4 s. Throws DeviceError if there is no device, InvalidArgument if a file of data/machines is
// faulty.
const std::vector<report::Ceiling>& measured_ceilings(int device = 0);

// Makes a report's ceiling of the measurement; `datasheet` is NaN if none is known.
report::Ceiling summarise(const gpu::MeasuredCeiling& measured, double datasheet);

// Ceilings of the processor with all threads: the fastest of some short samples; the interval reaches from
// their median to it. There are no data sheet values. Takes 2 s; make the first call while nothing else runs.
const std::vector<report::Ceiling>& cpu_ceilings();
report::Ceiling summarise(const cpu_ref::MeasuredCeiling& measured);

}  // namespace splash::experiments
