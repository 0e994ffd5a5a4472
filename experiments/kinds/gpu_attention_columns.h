#pragma once
// What the kind gpu-attention reports of a case.

#include <vector>

#include "analysis/report/report.h"

namespace splash::experiments {

std::vector<analysis::ColumnInfo> gpu_attention_columns();
analysis::ColumnInfo floor_column();  // of them, floor_time

}  // namespace splash::experiments
