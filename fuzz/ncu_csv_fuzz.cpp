// Tables of Nsight Compute, with the counters taken from them.

#include "analysis/counters.h"
#include "analysis/ncu_csv.h"
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
  return 0;
}
