#include "experiments/runner/provenance.h"

#include <H5public.h>
#include <ctime>
#include <fstream>
#include <omp.h>
#include <random>
#include <set>
#include <sys/utsname.h>
#include <unistd.h>

#include <fmt/format.h>

#include "build_info.h"
#include "experiments/runner/hash.h"
#include "gpu/device.h"

namespace splash::experiments {
namespace {

std::string utc(const char* format) {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  char text[64];
  return {text, std::strftime(text, sizeof text, format, &parts)};
}

std::string field_of_cpuinfo(const std::string& key) {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.compare(0, key.size(), key) != 0) continue;
    const std::size_t colon = line.find(": ");
    if (colon != std::string::npos) return line.substr(colon + 2);
  }
  return "";
}

std::string host() {
  utsname names{};
  uname(&names);
  return fmt::format("{} ({} {}, {})", names.nodename, names.sysname, names.release, names.machine);
}

// One line per experiment. The fingerprints of its inputs follow if they are few enough to read.
std::string describe_inputs(const std::vector<Definition>& definitions,
                            const std::vector<PlannedCase>& cases) {
  std::string text;
  for (std::size_t experiment = 0; experiment < definitions.size(); ++experiment) {
    std::set<std::string> hashes;
    for (const PlannedCase& planned : cases) {
      if (planned.experiment == experiment) hashes.insert(planned.input_hash);
    }
    Hash all;
    std::string few;
    for (const std::string& hash : hashes) {
      all.add(hash);
      few += " " + hash;
    }
    text +=
        fmt::format("{}: {} of {} distinct inputs", definitions[experiment].name, all.hex(), hashes.size());
    text += hashes.size() <= 8 ? ":" + few + "\n" : "\n";
  }
  return text;
}

// The first seed that a case uses; 0 if none uses one.
int64_t first_seed(const std::vector<Definition>& definitions, const std::vector<PlannedCase>& cases) {
  for (const PlannedCase& planned : cases) {
    const Parameters used = find_kind(definitions[planned.experiment].kind).used(planned.parameters);
    const auto seed = used.find("seed");
    if (seed == used.end()) continue;
    if (const auto* integer = std::get_if<int64_t>(&seed->second)) return *integer;
  }
  return 0;
}

}  // namespace

std::string utc_now() {
  return utc("%Y-%m-%dT%H:%M:%SZ");
}

std::string new_run_id() {
  return fmt::format("{}-{:08x}", utc("%Y%m%d-%H%M%S"), std::random_device{}());
}

std::string cpu_model() {
  const std::string model = field_of_cpuinfo("model name");
  return model.empty() ? "unknown" : model;
}

std::string toolchain() {
  unsigned major = 0, minor = 0, release = 0;
  H5get_libversion(&major, &minor, &release);
  std::string text = fmt::format("{}, {}, flags '{}', HDF5 {}.{}.{}", build::kCompiler, build::kBuildType,
                                 build::kCompilerFlags, major, minor, release);
  if (!build::kCudaVersion.empty())
    text += fmt::format(", nvcc {} for {}", build::kCudaVersion, build::kCudaArchitectures);
  return text;
}

report::Provenance collect_provenance(const std::vector<Definition>& definitions,
                                      const std::vector<PlannedCase>& cases, const std::string& argv) {
  report::Provenance provenance;
  provenance.commit = build::git_commit();
  provenance.dirty = build::git_state() != "clean";
  provenance.argv = argv;
  provenance.host = host();
  provenance.cpu = cpu_model();
  const std::string megahertz = field_of_cpuinfo("cpu MHz");
  if (!megahertz.empty())
    provenance.clocks = fmt::format("CPU {} MHz when the report was written", megahertz);
  const std::vector<gpu::DeviceInfo> devices = gpu::list_devices();
  for (const gpu::DeviceInfo& device : devices) {
    provenance.gpu += fmt::format("{}{}", provenance.gpu.empty() ? "" : "; ", device.name);
    provenance.driver =
        fmt::format("CUDA driver {}, runtime {}", device.driver_version, device.runtime_version);
    provenance.clocks += fmt::format("; {} at most {:.0f} MHz", device.name, device.clock_hz / 1e6);
  }
  if (!devices.empty()) {  // kernels run on the first
    provenance.compute_capability = 10 * devices.front().compute_major + devices.front().compute_minor;
    provenance.multiprocessors = devices.front().multiprocessors;
    provenance.l2_bytes = devices.front().l2_bytes;
  }
  if (provenance.gpu.empty()) provenance.gpu = "none: " + gpu::device_unavailable_reason();
  if (provenance.driver.empty()) provenance.driver = "none";
  provenance.toolchain = toolchain();
  provenance.input_hashes = describe_inputs(definitions, cases);
  provenance.seed = first_seed(definitions, cases);
  provenance.threads = omp_get_max_threads();
  return provenance;
}

}  // namespace splash::experiments
