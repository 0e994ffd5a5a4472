// Tiles smaller than the document's; rung 7 has those that the document names. The rest is rung 2. With fewer
// keys per tile, registers and shared memory suffice for two blocks per SM, whose loads and products overlap.
// Blocks of 64 rows gather every key twice.
//
// Predicted: two blocks hide each other's loads (3000 cycles) and work (4300): up to 1.5 times. Tiles of 32
// keys reduce and rescale O twice as often as tiles of 64. Blocks of 64 rows lose as much as they gain.

#include "gpu/ladders/kascade/register_softmax.cuh"

namespace splash::gpu {
namespace {

using namespace kascade;

template <int kRows, int kKeys>
Variant variant_of(const char* name, const char* finding) {
  using Softmax = RegisterSoftmax<kRows, kKeys>;
  return {.ladder = "kascade",
          .rung = 3,
          .name = name,
          .idea = "another tile size, rows by keys",
          .finding = finding,
          .predicted = {.over = "2-no-broadcast"},
          .limits = limits_of({.compute_capability = 80}),
          .plan = plan_sequential<Softmax>,
          .launch = launch_sequential<Softmax>,
          .trace = trace_sequential};
}

const Variant k128x64 = variant_of<128, 64>(
                  "tile-128x64", "5.6 ms at 32k: 1.51 times, for two blocks fit an SM instead of one."),
              k128x32 = variant_of<128, 32>("tile-128x32",
                                            "5.8 ms at 32k: 1.46 times, 4 % slower than 64 keys a tile."),
              k64x64 = variant_of<64, 64>("tile-64x64",
                                          "7.7 ms at 32k: 1.10 times, for every key is gathered twice.");
const VariantRegistration kRegistrations[] = {VariantRegistration(k128x64), VariantRegistration(k128x32),
                                              VariantRegistration(k64x64)};

}  // namespace
}  // namespace splash::gpu
