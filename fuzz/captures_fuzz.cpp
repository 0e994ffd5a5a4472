// Captured tensors: any bytes are a file of them or a refusal.

#include "analysis/capture.h"
#include "analysis/captured_heads.h"
#include "report/hdf5/file.h"
#include "core/error.h"
#include "fuzz/target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace splash;
  static fuzz::InputFile file;
  const std::string& path = file.hold(data, size);
  fuzz::expect<ReportError, InvalidArgument>([&] { report::hdf5::read_floats(path, "text/q", {1, 1}, 4); });
  fuzz::expect<ReportError, InvalidArgument>([&] { report::hdf5::read_texts(path, "text/token"); });
  fuzz::expect<ReportError, InvalidArgument>([&] {
    const analysis::Capture capture = analysis::read_capture(path);
    for (size_t call = 0; call < capture.calls.size(); ++call) {
      for (const char* name : {"q", "k", "v"})
        analysis::read_captured_tensor(path, static_cast<int64_t>(call), name, {0, 0});
      analysis::read_captured_heads(path, capture.layers.back(), capture.calls[call].shape);
    }
  });
  return 0;
}
