#include "analysis/next_steps.h"

#include <algorithm>

#include <doctest/doctest.h>

#include "analysis/tests/example_kernels.h"

using namespace splash;
using namespace splash::analysis;
using namespace splash::analysis::testing;

namespace {

const MeasuredGpu kGpu{
    kMachine,
    {ceiling("dram copy", "", 4e12), ceiling("dram read", "", 4e12), ceiling("l2 read", "", 1e13),
     ceiling("tensor", "bfloat16", 8e14), ceiling("launch", "", 3e-6), ceiling("graph node", "", 1e-6)}};

// Has tiles of 32 queries by 64 keys and takes `factor` times its floors.
KernelCase kernel(int64_t q_heads, double factor) {
  KernelCase k;
  k.case_id = "a case";
  k.implementation = "a/1-tiles";
  k.setting = "bfloat16, d 64";
  k.problem = "bfloat16, some heads, d 64";
  k.shape = {
      .batch = 1, .q_heads = q_heads, .kv_heads = q_heads, .q_len = 2048, .kv_len = 2048, .head_dim = 64};
  k.dtype = Dtype::bf16;
  k.unit = "bfloat16";
  k.tile_q = 32;
  k.tile_k = 64;
  const auto heads = static_cast<double>(q_heads);
  k.flops = k.useful_flops = heads * 4 * 2048.0 * 2048 * 64;
  k.l2_bytes = heads * 2 * 64 * (2 * 2048.0 + 64 * 2 * 2048);
  k.dram_bytes = heads * 2 * 64 * 4 * 2048;
  k.use = {.blocks = 64 * q_heads, .threads = 128, .registers = 64, .shared_bytes = 20480};
  const Floors floors = floors_of(k, kGpu.ceilings);
  k.seconds =
      3e-6 + factor * (floors.products + floors.l2 + floors.dram) / occupancy_of(kMachine, k.use).wave_yield;
  return k;
}

std::vector<NextStep> steps_of(const KernelCase& k) {
  return next_steps(k, diagnose(k, kMachine, kGpu.ceilings), Predictor({k}, kGpu), kMachine);
}

// The first number after the name; 0 if the name is missing.
int64_t number_of(const std::string& words, const std::string& name) {
  const auto at = words.find(name + "=");
  return at == std::string::npos ? 0 : std::stoll(words.substr(at + name.size() + 1));
}

Change change_of(const std::string& words) {
  Change change;
  if (const int64_t q = number_of(words, "tile_q")) change.tile_q = q;
  if (const int64_t k = number_of(words, "tile_k")) change.tile_k = k;
  return change;
}

bool any(const std::vector<NextStep>& steps, const std::string& words) {
  return std::any_of(steps.begin(), steps.end(),
                     [&](const NextStep& s) { return s.changes.find(words) != std::string::npos; });
}

}  // namespace

TEST_CASE("a kernel that L2 bounds is told to read keys for more queries at a time, with the model's gain") {
  const KernelCase k = kernel(64, 1);
  REQUIRE(diagnose(k, kMachine, kGpu.ceilings).findings[0].cause == Cause::l2);
  const auto steps = steps_of(k);
  REQUIRE_FALSE(steps.empty());
  CHECK(steps[0].changes.starts_with("tile_q="));
  CHECK(number_of(steps[0].changes, "tile_q") > 32);
  const double seconds = Predictor({k}, kGpu).predict(changed(k, change_of(steps[0].changes)), &k).seconds;
  CHECK(steps[0].gain == doctest::Approx(k.seconds / seconds));
  CHECK(steps[0].gain > 1.5);
}

TEST_CASE("a kernel with too few blocks is told to cut smaller tiles, or to take more at a time") {
  KernelCase k = kernel(1, 1);
  k.tile_q = 128;
  k.use.blocks = 16;
  k.l2_bytes = 2 * 64 * (2 * 2048.0 + 16 * 2 * 2048);
  k.seconds = floors_of(k, kGpu.ceilings).highest() / 0.12;
  k.replayed = true;
  REQUIRE(diagnose(k, kMachine, kGpu.ceilings).findings[0].cause == Cause::parallelism);
  const auto steps = steps_of(k);
  CHECK(any(steps, "batch="));
  REQUIRE(any(steps, "tile_q="));
  for (const NextStep& step : steps) CHECK(number_of(step.changes, "tile_q") < 128);
  for (std::size_t i = 1; i < steps.size(); ++i) CHECK(steps[i - 1].gain >= steps[i].gain);
}

TEST_CASE("a tile that is told can be built: the instruction divides it") {
  // There are too few blocks, so smaller tiles gain. 192 queries can be halved to 96, 48 and 24.
  KernelCase k = kernel(1, 1);
  k.tile_q = 192;
  k.use.blocks = 11;
  k.l2_bytes = 2 * 64 * (2 * 2048.0 + 11 * 2 * 2048);
  k.seconds = floors_of(k, kGpu.ceilings).highest() / 0.12;
  k.replayed = true;
  const auto told = [&](int instruction) {
    k.instruction_q = instruction;
    for (const NextStep& step : steps_of(k)) {
      if (const int64_t q = number_of(step.changes, "tile_q")) return q;
    }
    return int64_t{0};
  };
  CHECK(told(1) == 24);   // float32 units multiply single rows
  CHECK(told(16) == 48);  // mma multiplies 16 rows
  CHECK(told(64) == 0);   // wgmma multiplies 64 rows: neither 96 nor 48
  k.unit = "bfloat16";    // an older report does not say how many rows
  CHECK(told(0) == 48);
}

TEST_CASE("a call that is all launches is told to fuse and to replay") {
  KernelCase k = kernel(2, 0.01);
  k.launches = 3;
  k.seconds = 6e-6;
  const auto steps = steps_of(k);
  REQUIRE(steps.size() == 1);
  CHECK(steps[0].changes == "launches=1 method=graph");
  CHECK(steps[0].gain == doctest::Approx(3));  // launches take 5 of the 6 us, and 1 us of that remains
  CHECK_FALSE(any(steps, "tile"));             // work of several kernels does not follow from tiles
}

TEST_CASE("a change that gains less than a tenth, or does not fit, is not told") {
  KernelCase k = kernel(64, 1);
  k.l2_bytes = k.dram_bytes = 2 * 64 * 64 * 4 * 2048;  // only the tensor cores could gain
  k.flops *= 100;
  k.seconds = k.flops / 8e14 + 3e-6;
  CHECK(steps_of(k).empty());
  // Every wider tile needs more shared memory than there is.
  k = kernel(64, 1);
  k.use.shared_bytes = 200000;
  k.seconds = 1e-3;
  const auto steps = steps_of(k);
  REQUIRE_FALSE(steps.empty());
  for (const NextStep& step : steps)
    CHECK(occupancy_of(kMachine, changed(k, change_of(step.changes)).use).blocks >= 1);
}

TEST_CASE("the rung to look at is the fastest of the ladder on the same problem") {
  const KernelCase k = kernel(8, 4);
  const auto with = [&](const char* implementation, double seconds, const char* problem) {
    KernelCase other = k;
    other.implementation = implementation;
    other.seconds = seconds;
    other.problem = problem;
    return other;
  };
  const char* const here = k.problem.c_str();
  const std::vector<KernelCase> others{k, with("a/2", 0.5 * k.seconds, here),
                                       with("a/3", 0.4 * k.seconds, here), with("b/3", 0.1 * k.seconds, here),
                                       with("a/4", 0.1 * k.seconds, "another problem")};
  REQUIRE(faster_rung(k, others) != nullptr);
  CHECK(faster_rung(k, others)->implementation == "a/3");
  CHECK(faster_rung(k, {k, with("a/2", 0.95 * k.seconds, here)}) == nullptr);
}
