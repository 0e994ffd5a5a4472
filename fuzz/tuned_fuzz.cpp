// Files of tuned kernels: what is read is written as a text that reads back as the same.

#include "core/error.h"
#include "fuzz/target.h"
#include "gpu/engine/tuned.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace splash;
  splash::fuzz::expect<InvalidArgument>([&] {
    const std::string text =
        gpu::tuned_text(gpu::parse_tuned(std::string(reinterpret_cast<const char*>(data), size)));
    if (gpu::tuned_text(gpu::parse_tuned(text)) != text) std::abort();
  });
  return 0;
}
