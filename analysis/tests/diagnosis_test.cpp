#include "analysis/diagnosis.h"

#include <algorithm>

#include <doctest/doctest.h>

#include "analysis/tests/example_kernels.h"

using namespace splash;
using namespace splash::analysis;
using namespace splash::report;
using namespace splash::analysis::testing;

namespace {

std::vector<Ceiling> ceilings() {
  return {ceiling("dram copy", "", 4e12),  ceiling("dram read", "", 4e12), ceiling("l2 read", "", 1e13),
          ceiling("tensor", "tf32", 4e14), ceiling("launch", "", 2.5e-6),  ceiling("graph node", "", 5e-7),
          ceiling("shared read", "", 3e13)};
}

// Takes 1 ms: 200 blocks in one full wave of two per multiprocessor, with every level busy for a tenth of it.
KernelCase kernel() {
  KernelCase k;
  k.seconds = 1e-3;
  k.flops = 0.1 * 4e14 * k.seconds;
  k.l2_bytes = 0.1 * 1e13 * k.seconds;
  k.dram_bytes = 0.1 * 4e12 * k.seconds;
  k.unit = "tf32";
  k.exponentials = 0;
  k.use = {.blocks = 200, .threads = 256, .registers = 128, .shared_bytes = 0};
  return k;
}

// The same with a profiler's counters: shared memory and issue slots are busy for these shares of the time.
KernelCase counted(double shared, double issue) {
  KernelCase k = kernel();
  k.clock_hz = 1.5e9;
  k.shared_traffic = shared * 3e13 * k.seconds;
  k.instructions = issue * 4 * kMachine.count * k.clock_hz * k.seconds;
  return k;
}

Finding verdict(const KernelCase& k, const std::vector<KernelCase>& others = {}) {
  return diagnose(k, kMachine, ceilings(), others).findings.front();
}

// `k` with `times` as many heads and blocks; it takes `seconds`.
KernelCase more_heads(KernelCase k, int64_t times, double seconds) {
  k.case_id = "more";
  k.shape.q_heads *= times;
  k.shape.kv_heads *= times;
  k.use.blocks *= times;
  for (double* count : {&k.flops, &k.l2_bytes, &k.dram_bytes}) *count *= static_cast<double>(times);
  k.seconds = seconds;
  return k;
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

  k = kernel();
  k.flops *= 9;
  CHECK(verdict(k).cause == Cause::products);

  k = kernel();
  k.use.blocks = 10;  // 10 blocks, 100 multiprocessors; if all were busy, a level at a tenth would bind
  CHECK(verdict(k).cause == Cause::parallelism);
  CHECK(verdict(k).gain == doctest::Approx(10));
  CHECK(verdict(k).sentence == "its 10 blocks leave 90 of 100 multiprocessors idle");

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

TEST_CASE("a level of which more is counted than the time allows is no verdict, unless counters saw it") {
  KernelCase k = kernel();
  k.l2_bytes *= 14;
  Diagnosis diagnosis = diagnose(k, kMachine, ceilings());
  CHECK(diagnosis.findings.front().cause == Cause::inside);
  CHECK(diagnosis.findings.front().gain == doctest::Approx(10));  // limited by the tensor cores
  CHECK(diagnosis.findings.front().sentence.find("issue slots, shared memory, L2 or latency") !=
        std::string::npos);
  CHECK(diagnosis.not_known.front() ==
        "L2 (counted are 140 % of what it could deliver, so L1 serves a part)");
  for (const std::string& clause : diagnosis.ruled_out) CHECK_FALSE(clause.starts_with("L2"));

  // Everything but L2 is counted: L2 may be busy, so the verdict is not latency.
  KernelCase all = counted(0.3, 0.4);
  all.l2_bytes *= 14;
  CHECK(verdict(all).cause == Cause::inside);
  CHECK(verdict(all).sentence.find(": L2 or latency, which counts do not tell apart") != std::string::npos);

  k = kernel();
  k.dram_bytes *= 20;
  diagnosis = diagnose(k, kMachine, ceilings());
  CHECK(diagnosis.findings.front().cause == Cause::inside);
  CHECK(diagnosis.not_known.front() ==
        "DRAM (counted are 200 % of what it could deliver, so L2 serves a part)");

  k = kernel();
  k.l2_traffic = 14 * k.l2_bytes;
  CHECK(verdict(k).cause == Cause::l2);
  CHECK(verdict(k).gain == 1);
  CHECK(verdict(k).sentence ==
        "L2 would need 140 % of the time at the measured ceiling, by counters, which cannot be: that ceiling "
        "is "
        "too low, or was measured at another clock");

  k = kernel();  // no cache serves products
  k.flops *= 12;
  CHECK(verdict(k).cause == Cause::products);
  CHECK(
      verdict(k).sentence.find("the tensor cores would need 120 % of the time at the measured ceiling, which "
                               "cannot be: that ceiling is too low") == 0);

  k = kernel();  // within the error of measuring
  k.l2_bytes *= 10.4;
  CHECK(verdict(k).cause == Cause::l2);
  CHECK(verdict(k).sentence.find("only less work") != std::string::npos);
}

TEST_CASE("what is named as nearest is not ruled out beside it") {
  KernelCase near = counted(0.3, 0.4);  // the fallback: nothing is busy, and steps do not wait
  near.flops *= 5.55;
  near.use.blocks = 92;  // where blocks are resident, 60 % of the ceiling
  for (const KernelCase& k : {near, kernel(), counted(0.3, 0.4)}) {
    const Diagnosis diagnosis = diagnose(k, kMachine, ceilings());
    REQUIRE(diagnosis.findings.size() == 1);
    const std::string& sentence = diagnosis.findings[0].sentence;
    CAPTURE(sentence);
    REQUIRE_FALSE(diagnosis.ruled_out.empty());
    for (const std::string& clause : diagnosis.ruled_out)
      CHECK(sentence.find(clause.substr(0, clause.find(" ("))) == std::string::npos);
  }
  CHECK(verdict(near).sentence == "the tensor cores come nearest, with 55.5 % of the measured ceiling");
}

TEST_CASE("exponentials have a ceiling: measured, else what the vendor prints, else they are not known") {
  KernelCase k = counted(0.3, 0.4);
  k.exponentials = 0.7 * 4e12 * k.seconds;
  Multiprocessors machine = kMachine;
  CHECK(diagnose(k, machine, ceilings()).findings.front().cause ==
        Cause::inside);  // they may be what is busy
  CHECK(diagnose(k, machine, ceilings()).not_known == std::vector<std::string>{"exponentials"});

  machine.exponentials = 16;  // with 100 multiprocessors at 1.5 GHz: 2.4e12 per second
  Finding finding = diagnose(k, machine, ceilings()).findings.front();
  CHECK(finding.cause == Cause::exponentials);
  CHECK(finding.sentence.find("exponentials would need 117 % of the time at the data sheet's 16 a clock and "
                              "multiprocessor at 1.5 GHz, which cannot be") == 0);

  std::vector<Ceiling> with = ceilings();
  with.push_back(ceiling("exponentials", "", 4e12));
  finding = diagnose(k, machine, with).findings.front();
  CHECK(finding.cause == Cause::exponentials);
  CHECK(finding.gain == doctest::Approx(1 / 0.7));
  CHECK(finding.sentence ==
        "exponentials would need 70 % of the time at the measured ceiling: only less work for them helps");

  k.exponentials = 0.2 * 4e12 * k.seconds;
  const Diagnosis diagnosis = diagnose(k, machine, with);
  CHECK(diagnosis.findings.front().cause == Cause::latency);
  CHECK(std::find(diagnosis.ruled_out.begin(), diagnosis.ruled_out.end(),
                  "exponentials (20 % of the measured ceiling)") != diagnosis.ruled_out.end());
}

TEST_CASE("full waves rule out a tail") {
  KernelCase k = kernel();
  k.use.blocks = 400;
  CHECK(diagnose(k, kMachine, ceilings()).ruled_out.back() == "idle places (100 % filled)");
}

TEST_CASE("few resident warps alone are no diagnosis") {
  KernelCase k = kernel();
  k.use = {.blocks = 100, .threads = 32, .registers = 255, .shared_bytes = 232448};  // one warp resident
  k.flops *= 8;
  const Diagnosis diagnosis = diagnose(k, kMachine, ceilings());
  REQUIRE(diagnosis.findings.size() == 1);
  CHECK(diagnosis.findings[0].cause == Cause::products);
}

TEST_CASE("with counters shared memory, issue slots and latency are told apart") {
  CHECK(verdict(counted(0.8, 0.4)).cause == Cause::shared_memory);
  CHECK(verdict(counted(0.8, 0.4)).gain == doctest::Approx(1 / 0.8));
  CHECK(verdict(counted(0.3, 0.75)).cause == Cause::issue_slots);
  CHECK(verdict(counted(0.3, 0.75)).sentence ==
        "warps issue in 75 % of all slots: only fewer instructions help");
  const Finding waits = verdict(counted(0.3, 0.4));
  CHECK(waits.cause == Cause::latency);
  CHECK(waits.gain == doctest::Approx(1 / 0.4));
  CHECK(waits.sentence.find("40 % of the ceiling of issue slots is used") != std::string::npos);
  CHECK(diagnose(counted(0.3, 0.4), kMachine, ceilings()).not_known.empty());
  CHECK(diagnose(kernel(), kMachine, ceilings()).not_known ==
        std::vector<std::string>{"shared memory", "issue slots"});
}

TEST_CASE("bytes that counters saw stand in for those that are counted") {
  KernelCase k = counted(0.3, 0.4);
  k.l2_bytes *= 8;  // what blocks ask for, including what L1 serves
  REQUIRE(verdict(k).cause == Cause::l2);
  k.l2_traffic = k.l2_bytes / 8;
  CHECK(verdict(k).cause == Cause::latency);
  k.dram_traffic = 7 * k.dram_bytes;  // L2 did not hold it
  CHECK(verdict(k).cause == Cause::dram);
  CHECK(verdict(k).sentence.find("at the measured ceiling, by counters") != std::string::npos);
}

TEST_CASE("without counters the same kernel with more blocks tells latency from something that is busy") {
  KernelCase k = kernel();
  k.use.blocks = 100;  // each multiprocessor has one block and room for two
  // Twice the blocks take the same time, so there was room. The gain is the measured one.
  const Finding few = verdict(k, {more_heads(k, 2, 1.02e-3)});
  CHECK(few.cause == Cause::parallelism);
  CHECK(few.gain == doctest::Approx(1.96).epsilon(0.01));
  CHECK(few.sentence.find("with 2 times the blocks (case more) it does 1.96 times the work a second") !=
        std::string::npos);
  CHECK(few.measured);
  // A fifth of the ceilings would then be used, so other findings rank behind the measured one.
  const auto findings = diagnose(k, kMachine, ceilings(), {more_heads(k, 2, 1.02e-3)}).findings;
  REQUIRE(findings.size() == 2);
  CHECK(findings[1].cause == Cause::inside);
  CHECK(findings[1].gain == doctest::Approx(5.1).epsilon(0.01));
  CHECK(findings[1].sentence.find("even with as many blocks as that, 19.6 % of the ceiling") == 0);
  // Twice the blocks take twice the time, so something inside is already busy with one block.
  const Diagnosis busy = diagnose(k, kMachine, ceilings(), {more_heads(k, 2, 1.95e-3)});
  CHECK(busy.findings.front().cause == Cause::inside);
  CHECK(busy.findings.front().sentence.find("issue slots or shared memory must be busy, it is not latency") !=
        std::string::npos);
  CHECK(busy.ruled_out.back() ==
        "too few blocks (with 2 times the blocks (case more) it does 1.02 times the work a second)");
  // From the view of a full wave: little of its time grows with the blocks, so it waits.
  const KernelCase full = kernel();
  KernelCase half = full;
  half.use.blocks = 100;
  for (double* count : {&half.flops, &half.l2_bytes, &half.dram_bytes}) *count /= 2;
  half.seconds = 0.85e-3;
  CHECK(verdict(full, {half}).cause == Cause::latency);
  half.seconds = 0.55e-3;
  CHECK(verdict(full, {half}).cause == Cause::inside);
}

TEST_CASE("idle multiprocessors are a cause, few blocks on each are none") {
  KernelCase k = kernel();
  k.use.blocks = 100;  // one block per multiprocessor, of the two that fit
  CHECK(verdict(k).cause == Cause::inside);
  CHECK(diagnose(k, kMachine, ceilings()).ruled_out.back() == "idle multiprocessors (100 blocks for 100)");
}

TEST_CASE("of busy products it is told how much is useful") {
  KernelCase k = kernel();
  k.flops *= 9;
  k.useful_flops = k.flops;
  CHECK(verdict(k).sentence.find("useful") == std::string::npos);
  k.useful_flops = k.flops / 4;
  CHECK(verdict(k).sentence.find("of what it multiplies 25 % is useful") != std::string::npos);
}

TEST_CASE("what is not a cause is ruled out with its number") {
  CHECK(diagnose(kernel(), kMachine, ceilings()).ruled_out ==
        std::vector<std::string>{"L2 (10 % of the measured ceiling)", "DRAM (10 % of the measured ceiling)",
                                 "launches (0.25 % of the time)",
                                 "idle multiprocessors (200 blocks for 100)"});
}
