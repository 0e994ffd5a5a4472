// Tables of Nsight Compute, with the counters and the kernels taken from them.

#include "analysis/counters.h"
#include "analysis/diagnosis.h"
#include "analysis/impossible.h"
#include "analysis/ncu_csv.h"
#include "analysis/profile_import.h"
#include "core/error.h"
#include "fuzz/target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace splash;
  using namespace splash::analysis;
  fuzz::expect<InvalidArgument>([&] {
    const NcuResults results = parse_ncu({reinterpret_cast<const char*>(data), size});
    for (const NcuKernel& kernel : results.kernels) static_cast<void>(kernel.function());
    KernelCase asked;
    asked.use = {.blocks = 2048, .threads = 256, .registers = 128, .shared_bytes = 115712};
    asked.kernel = "forward_kernel";
    asked.launches = 1;
    match_counters(results.kernels, {asked});
  });
  fuzz::expect<InvalidArgument>([&] {
    const NcuResults results = parse_ncu({reinterpret_cast<const char*>(data), size});
    if (results.kernels.empty()) return;
    std::vector<ProfiledCase> cases = profiled_cases(results.kernels);
    const ProfiledGpu gpu = gpu_of(results.kernels, cases, "", {});
    for (ProfiledCase& profiled : cases) static_cast<void>(impossible(profiled, gpu, {}));
    for (const KernelCase& kernel : kernel_cases(profiled_report(cases, gpu, datasheet_ceilings(gpu))))
      static_cast<void>(diagnose(kernel, *gpu.multiprocessors, datasheet_ceilings(gpu)));
  });
  return 0;
}
