#pragma once
// Timing of calls on a GPU or on the host, and the columns for times.

#include <functional>
#include <string>
#include <vector>

#include "core/attention_spec.h"
#include "experiments/runner/kind.h"
#include "gpu/benchmark/timing.h"
#include "report/report.h"

namespace splash::experiments {

// The parameters method, cache, samples.
std::vector<ParameterInfo> timing_parameters();
gpu::TimingOptions timing_of(const Parameters& parameters);

// Throws InvalidArgument if the parameters do not fit together.
void check_timing(const Parameters& parameters);
// Throws InvalidArgument if the parameter is below 1.
void require_one(const Parameters& parameters, const std::string& name);
// Throws InvalidArgument unless the parameter, a number, is above 0.
void require_positive(const Parameters& parameters, const std::string& name);

// A column that another run fills with other numbers.
report::ColumnInfo taken(const char* name, const char* units, const char* long_name, const char* formula,
                         const std::string& missing_reason);
// The columns: time, along `sample`, and its median with the interval's ends.
std::vector<report::ColumnInfo> time_columns(const std::string& missing_reason);
// The columns clock_before, clock_after.
std::vector<report::ColumnInfo> clock_columns(const std::string& missing_reason);
// The columns warning, version.
std::vector<report::ColumnInfo> run_columns();

// Calls it once per sample. Returns seconds of a monotonic clock.
std::vector<double> time_on_host(const std::function<void()>& call, int64_t samples);
double seconds_now();

// Fills time_columns.
void add_samples(std::vector<double> seconds, CaseResult& result);
// Fills time_columns, and warning if it is still empty.
void add_times(std::vector<double> seconds, CaseResult& result);

// Adds dense_equivalent_flops, the work of dense attention, and dense_equivalent_rate, that work /
// time_median.
void add_dense_equivalent(const AttentionSpec& spec, bool backward, CaseResult& result);

// Times a call of this build. Also fills clock_columns and version.
void time_call(const std::function<void()>& call, const gpu::Stream& stream, const Parameters& parameters,
               CaseResult& result);
// The same of a call that does its work `times` times over; the columns tell of once.
void time_call(const std::function<void()>& call, const gpu::Stream& stream,
               const gpu::TimingOptions& options, int64_t times, CaseResult& result);

}  // namespace splash::experiments
