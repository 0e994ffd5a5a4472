#include "analysis/recorded_machine.h"

#include <fmt/format.h>

#include "analysis/profiled_kernel.h"
#include "core/error.h"

namespace splash::analysis {
namespace {

constexpr int64_t kMostMultiprocessors = 4096, kMostL2 = int64_t{1} << 30;

// Of several GPUs of one name, "A; A", the name; else the text as it stands.
std::string gpu_of(const report::Report& report) {
  const std::string& all = report.provenance.gpu;
  const std::string first = all.substr(0, all.find("; "));
  return are_all(all, first) ? first : all;
}

bool tells_multiprocessors(const report::Provenance& told) {
  return told.compute_capability > 0 && told.compute_capability < 1000 && told.multiprocessors > 0 &&
         told.multiprocessors <= kMostMultiprocessors;
}

std::optional<Machine> told_machine(const report::Report& report) {
  const report::Provenance& told = report.provenance;
  Machine machine;
  machine.name = gpu_of(report);
  if (const auto profiled = profiled_multiprocessors(report)) {
    machine.multiprocessors = *profiled;
    return machine;
  }
  if (!tells_multiprocessors(told)) return std::nullopt;
  machine.compute_capability = static_cast<int>(told.compute_capability);
  const auto known = multiprocessors_of(machine.compute_capability, static_cast<int>(told.multiprocessors));
  if (!known) return std::nullopt;
  machine.multiprocessors = *known;
  if (told.l2_bytes > 0 && told.l2_bytes <= kMostL2) machine.l2 = {.bytes = told.l2_bytes, .partitions = 1};
  return machine;
}

}  // namespace

std::optional<Machine> find_machine(const report::Report& report, const std::vector<Machine>& machines) {
  if (std::optional<Machine> described = find_machine(gpu_of(report), machines)) return described;
  return told_machine(report);
}

Machine machine_of(const report::Report& report, const std::vector<Machine>& machines) {
  if (std::optional<Machine> found = find_machine(report, machines)) return *std::move(found);
  const report::Provenance& told = report.provenance;
  const std::string missing =
      tells_multiprocessors(told)
          ? fmt::format("what a multiprocessor of its compute capability {}.{} holds is not known",
                        told.compute_capability / 10, told.compute_capability % 10)
          : "the report does not tell its multiprocessors";
  throw InvalidArgument(
      fmt::format("no file of data/machines describes the GPU '{}', and {}: describe it (splash new machine)",
                  gpu_of(report), missing));
}

}  // namespace splash::analysis
