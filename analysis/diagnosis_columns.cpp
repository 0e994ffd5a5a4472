// Diagnoses and predictions as columns of a report.

#include <optional>

#include "analysis/diagnosis.h"
#include "analysis/launches.h"
#include "analysis/what_if.h"

namespace splash::analysis {
namespace {

report::ColumnInfo told(const char* name, const char* long_name) {
  return {.name = name,
          .units = "text",
          .long_name = long_name,
          .formula = "counted work, measured ceilings and the report's other cases: splash diagnose",
          .is_text = true,
          .reproducible = false,
          .missing_reason = "of this case nothing is counted"};
}

report::ColumnInfo predicted(const char* name, const char* long_name) {
  return {
      .name = name,
      .units = "s",
      .long_name = long_name,
      .formula = "the model of splash what-if, from cases of the kernel on other problems",
      .reproducible = false,
      .missing_reason = "the report has the kernel on no other problem, or nothing is counted of this case"};
}

}  // namespace

void write_diagnoses(report::Report& report, const Multiprocessors& machine) {
  const std::vector<KernelCase> kernels = described_kernels(report, machine);
  const Predictor predictor(kernels, {machine, report.ceilings});
  const auto at = [](auto& values, const KernelCase& kernel) -> auto& {
    return values[static_cast<std::size_t>(kernel.row)];
  };
  for (const KernelCase& kernel : kernels) {
    const Finding verdict = diagnose(kernel, machine, report.ceilings, kernels).findings.front();
    at(report::column_of(report, told("verdict", "what bounds the time")).texts, kernel) =
        to_string(verdict.cause);
    at(report::column_of(report, told("diagnosis", "why the kernel takes its time")).texts, kernel) =
        verdict.sentence;
  }
  for (const KernelCase& kernel : kernels) {
    const std::optional<Prediction> prediction = predictor.held_out(kernel);
    if (!prediction) continue;
    at(report::column_of(report, predicted("time_predicted", "predicted time of one call")).numbers, kernel) =
        prediction->seconds;
    at(report::column_of(report, predicted("time_predicted_low", "lower end of eight in ten predictions"))
           .numbers,
       kernel) = prediction->low;
    at(report::column_of(report, predicted("time_predicted_high", "upper end of eight in ten predictions"))
           .numbers,
       kernel) = prediction->high;
  }
}

}  // namespace splash::analysis
