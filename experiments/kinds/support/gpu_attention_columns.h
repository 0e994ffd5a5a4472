#pragma once
// The columns of the kind gpu-attention.

#include <vector>

#include "report/report.h"

namespace splash::experiments {

std::vector<report::ColumnInfo> gpu_attention_columns();
report::ColumnInfo floor_column();  // one of them: floor_time

}  // namespace splash::experiments
