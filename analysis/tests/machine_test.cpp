#include "analysis/machine.h"

#include <cmath>

#include <doctest/doctest.h>

#include "analysis/tests/example_kernels.h"

using namespace splash::analysis;
using splash::analysis::testing::message_of;

namespace {

const std::string kMachineFile =
    "name = 'A GPU'\ndevices = ['NVIDIA A']\n"
    "[multiprocessors]\ncompute_capability = 90\ncount = 4\nwarps = 64\nblocks = 32\nregisters = "
    "65536\nshared_bytes = 102400\nl1_bytes = 131072\n"
    "source = 'a guide'\n"
    "[l2]\nbytes = 41943040\npartitions = 2\nsource = 'a paper'\n"
    "[[peak]]\nceiling = 'dram'\nvalue = 1e12\nunits = 'bytes/s'\nsource = 'a data sheet'\n"
    "[[peak]]\nceiling = 'tensor'\ndtype = 'tf32'\nvalue = 100_000_000_000_000\nunits = 'FLOP/s'\nsource = "
    "'the same'\n";

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// The error message for the machine's file in which the first `from` is replaced by `to`.
std::string fault(const std::string& from, const std::string& to) {
  std::string text = kMachineFile;
  REQUIRE(contains(text, from));
  text.replace(text.find(from), from.size(), to);
  return message_of([&] { parse_machine(text, "m.toml"); });
}

}  // namespace

TEST_CASE("a machine is read, and one DRAM figure serves copying and reading") {
  const Machine machine = parse_machine(kMachineFile, "m.toml");
  CHECK(machine.name == "A GPU");
  CHECK(machine.devices == std::vector<std::string>{"NVIDIA A"});
  CHECK(machine.compute_capability == 90);
  CHECK(machine.multiprocessors.count == 4);
  CHECK(machine.multiprocessors.shared_bytes == 102400);
  CHECK(machine.l1_bytes == 131072);
  CHECK(machine.l2.bytes == 41943040);
  CHECK(machine.l2.partitions == 2);
  CHECK(machine_of("NVIDIA A", {machine}).name == "A GPU");
  CHECK(!find_machine("NVIDIA B", {machine}));
  CHECK(contains(message_of([&] { machine_of("NVIDIA B", {machine}); }),
                 "no file of data/machines describes the GPU 'NVIDIA B'"));
  CHECK(machine.peak("dram copy", "") == 1e12);
  CHECK(machine.peak("dram read", "") == 1e12);
  CHECK(machine.peak("tensor", "tf32") == 1e14);
  CHECK(std::isnan(machine.peak("tensor", "float16")));
  CHECK(std::isnan(machine.peak("launch", "")));
}

TEST_CASE("what is wrong with a machine's file is one sentence with its place") {
  CHECK(contains(fault("name = 'A GPU'\n", ""), "the machine lacks 'name'"));
  CHECK(contains(fault("devices = ['NVIDIA A']\n", ""), "the machine lacks 'devices'"));
  CHECK(contains(fault("[l2]\nbytes = 41943040\npartitions = 2\nsource = 'a paper'\n", ""),
                 "the machine lacks the table [l2]"));
  CHECK(contains(fault("partitions = 2", "partitions = 3"),
                 "m.toml:14: 'partitions' must be a whole number from 1 to 2"));
  CHECK(contains(fault("['NVIDIA A']", "'NVIDIA A'"), "m.toml:2: 'devices' must be a list of names"));
  CHECK(contains(fault("['NVIDIA A']", "[]"), "at least one"));
  CHECK(contains(fault("['NVIDIA A']", "['NVIDIA A', 3]"), "must be a list of names"));
  CHECK(
      contains(fault("'dram'", "'dream'"), "m.toml:17: 'ceiling' cannot be \"dream\"; did you mean 'dram'?"));
  CHECK(contains(fault("dtype = 'tf32'\n", ""), "'dtype' cannot be \"\""));
  CHECK(contains(fault("'tf32'", "'tf23'"), "did you mean 'tf32'?"));
  CHECK(
      contains(fault("[multiprocessors]", "[processors]"), "the machine lacks the table [multiprocessors]"));
  CHECK(contains(fault("warps = 64\n", ""), "[multiprocessors] lacks 'warps'"));
  CHECK(contains(fault("blocks = 32", "blocks = 0"), "m.toml:7: 'blocks' must be a whole number from 1"));
  CHECK(contains(fault("l1_bytes = 131072\n", ""), "[multiprocessors] lacks 'l1_bytes'"));
  CHECK(contains(fault("l1_bytes = 131072", "l1_bytes = 65536"),
                 "'l1_bytes' is 65536, less than 'shared_bytes', which it includes"));
  CHECK(contains(fault("registers = 65536", "registers = 6.5e4"), "'registers' must be a whole number"));
  CHECK(contains(fault("'a guide'", "''"), "'source' is empty"));
  CHECK(contains(fault("value = 1e12\n", ""), "[[peak]] lacks 'value', a number"));
  CHECK(contains(fault("value = 1e12", "value = '4.8 TB/s'"), "m.toml:18: 'value' must be a number"));
  for (const char* impossible : {"0", "-1e12", "4.8", "4.8e21", "nan", "inf"}) {
    CAPTURE(impossible);
    CHECK(contains(fault("1e12", impossible), "m.toml:18: 'value' is"));
  }
  CHECK(contains(fault("'bytes/s'", "'GB/s'"), "'units' cannot be \"GB/s\""));
  CHECK(contains(fault("source = 'a data sheet'\n", ""), "[[peak]] lacks 'source'"));
  CHECK(contains(fault("'a data sheet'", "''"), "'source' is empty"));
  CHECK(contains(fault("units = 'bytes/s'\n", "units = 'bytes/s'\nsparse = 2\n"), "unknown key 'sparse'"));
  CHECK(contains(
      fault("[[peak]]\nceiling = 'tensor'\ndtype = 'tf32'\nvalue = 100_000_000_000_000\nunits = 'FLOP/s'",
            "[[peak]]\nceiling = 'dram'\nvalue = 1e12\nunits = 'bytes/s'"),
      "m.toml:21: the peak of 'dram' is there twice"));
  CHECK(contains(fault("['NVIDIA A']", "['NVIDIA A'"), "not valid TOML"));
  CHECK(contains(
      message_of([] { parse_machine(kMachineFile.substr(0, kMachineFile.find("[[peak]]")), "m.toml"); }),
      "has no [[peak]]"));
  CHECK(contains(message_of([] { read_machines("/nowhere/at/all"); }),
                 "cannot read the machines in /nowhere/at/all"));
}

TEST_CASE("the machines of this repository are right, and dense") {
  const auto machines = read_machines(std::string(SPLASH_SOURCE_DIR) + "/data/machines");
  std::size_t names = 0;
  for (const Machine& machine : machines) names += machine.devices.size();
  CHECK(names >= 30);
  for (const char* name :
       {"NVIDIA H20", "NVIDIA H100 NVL", "NVIDIA GH200 480GB", "NVIDIA A800-SXM4-80GB", "NVIDIA L20",
        "NVIDIA RTX 6000 Ada Generation", "NVIDIA B200", "NVIDIA GB200", "NVIDIA GeForce RTX 5090"})
    CHECK(find_machine(name, machines));
  for (const Machine& machine : machines) {
    CAPTURE(machine.name);
    const double f16 = machine.peak("tensor", "float16"), tf32 = machine.peak("tensor", "tf32");
    CHECK(machine.peak("dram copy", "") > 1e11);
    if (std::isnan(f16)) continue;  // what has no source is not there
    if (machine.compute_capability < 80) {
      CHECK(std::isnan(tf32));
      continue;
    }
    CHECK(machine.peak("tensor", "bfloat16") == f16);
    CHECK(f16 / tf32 == doctest::Approx(2).epsilon(0.02));
    const double f8 = machine.peak("tensor", "float8_e4m3");
    if (!std::isnan(f8)) CHECK(f8 / f16 == doctest::Approx(2).epsilon(0.02));
    for (const DatasheetPeak& peak : machine.peaks) {
      const bool sparse = contains(peak.source, "with sparsity");
      if (sparse) CHECK(contains(peak.source, "dense is half"));
    }
  }
}
