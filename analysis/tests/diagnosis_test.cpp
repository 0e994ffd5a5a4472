#include "analysis/diagnosis.h"

#include <doctest/doctest.h>

#include "analysis/tests/example_kernels.h"

using namespace splash;
using namespace splash::analysis;
using namespace splash::analysis::testing;

namespace {

std::vector<Ceiling> ceilings() {
  return {ceiling("dram copy", "", 4e12),  ceiling("dram read", "", 4e12), ceiling("l2 read", "", 1e13),
          ceiling("tensor", "tf32", 4e14), ceiling("launch", "", 2.5e-6),  ceiling("graph node", "", 5e-7)};
}

// One millisecond, 200 blocks in one full wave of two a multiprocessor, every level at a tenth.
KernelCase kernel() {
  KernelCase k;
  k.seconds = 1e-3;
  k.flops = 0.1 * 4e14 * k.seconds;
  k.l2_bytes = 0.1 * 1e13 * k.seconds;
  k.dram_bytes = 0.1 * 4e12 * k.seconds;
  k.unit = "tf32";
  k.use = {.blocks = 200, .threads = 256, .registers = 128, .shared_bytes = 0};
  return k;
}

Finding verdict(const KernelCase& k) {
  return diagnose(k, kMachine, ceilings()).findings.front();
}

}  // namespace

TEST_CASE("a kernel whose cause is known by construction gets that cause") {
  KernelCase k = kernel();
  CHECK(verdict(k).cause == Cause::inside);
  CHECK(verdict(k).gain == doctest::Approx(10));

  k.dram_bytes *= 8;
  CHECK(verdict(k).cause == Cause::dram);
  CHECK(verdict(k).gain == doctest::Approx(1 / 0.8));

  k = kernel();
  k.l2_bytes *= 7;
  CHECK(verdict(k).cause == Cause::l2);

  k.l2_bytes *= 2;  // more than L2 can deliver
  CHECK(verdict(k).cause == Cause::l2);
  CHECK(verdict(k).gain == 1);
  CHECK(verdict(k).sentence.find("L2 is asked for 140 % of what it could deliver") == 0);

  k = kernel();
  k.flops *= 9;
  CHECK(verdict(k).cause == Cause::products);

  k = kernel();
  k.use.blocks = 10;  // of 200 places; filled, a level at a tenth would bind
  CHECK(verdict(k).cause == Cause::parallelism);
  CHECK(verdict(k).gain == doctest::Approx(10));
  k.l2_bytes = k.dram_bytes = 0;
  k.flops = 0.04 * 4e14 * k.seconds;
  CHECK(verdict(k).gain == doctest::Approx(20));

  k = kernel();
  k.seconds = 4e-6;
  k.flops = k.l2_bytes = k.dram_bytes = 1;
  k.launches = 3;  // 2.5 and twice 0.5 us
  CHECK(verdict(k).cause == Cause::launches);
  CHECK(verdict(k).sentence.find("3 kernels takes 87.5 %") != std::string::npos);
  k.replayed = true;
  CHECK(diagnose(k, kMachine, ceilings()).findings.back().sentence.find("37.5 %") != std::string::npos);

  k = kernel();
  for (double* count : {&k.flops, &k.l2_bytes, &k.dram_bytes}) *count *= 4;
  k.use.blocks = 201;  // a second wave for one block
  const auto findings = diagnose(k, kMachine, ceilings()).findings;
  REQUIRE(findings.size() == 1);
  CHECK(findings[0].cause == Cause::tail);
  CHECK(findings[0].gain == doctest::Approx(400.0 / 201));
}

TEST_CASE("few resident warps alone are no diagnosis") {
  KernelCase k = kernel();
  k.use = {.blocks = 100, .threads = 32, .registers = 255, .shared_bytes = 232448};  // one warp resident
  k.flops *= 8;
  const Diagnosis diagnosis = diagnose(k, kMachine, ceilings());
  REQUIRE(diagnosis.findings.size() == 1);
  CHECK(diagnosis.findings[0].cause == Cause::products);
}

TEST_CASE("what is not a cause is ruled out with its number") {
  CHECK(diagnose(kernel(), kMachine, ceilings()).ruled_out ==
        std::vector<std::string>{"the tensor cores (10 % of the measured ceiling)",
                                 "L2 (10 % of the measured ceiling)", "DRAM (10 % of the measured ceiling)",
                                 "launches (0.25 % of the time)", "idle places (100 % filled)"});
}
