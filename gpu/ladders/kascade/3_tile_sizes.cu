// Tiles smaller than the document's (those it names are rung 7), rung 2 otherwise: fewer keys a tile leave
// registers and shared memory for two blocks an SM, whose loads and products overlap; 64 rows a block gather
// the keys twice.
//
// Predicted: loads (3000 cycles) and work (4300) of two blocks hide one another: up to 1.5 times; 32 keys
// reduce and rescale O twice as often as 64; 64 rows pay as much as they win.

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
