// Reports: any bytes are a report or a refusal.

#include "analysis/compare.h"
#include "report/io.h"
#include "core/error.h"
#include "fuzz/target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace splash;
  static fuzz::InputFile file;
  fuzz::expect<ReportError, InvalidArgument>([&] {
    const report::Report report = report::read_report(file.hold(data, size));
    analysis::compare_reports(report, report, {});
  });
  return 0;
}
