// splash doctor: whether this machine is ready, and what to do if it is not.

#include <filesystem>
#include <omp.h>
#include <thread>
#include <unistd.h>

#include <fmt/format.h>
#include <hdf5.h>
#include <nlohmann/json.hpp>

#include "build_info.h"
#include "experiments/claims/claim.h"
#include "experiments/cli/command.h"
#include "experiments/cli/console.h"
#include "experiments/cli/places.h"
#include "experiments/runner/definition.h"
#include "experiments/runner/project_root.h"
#include "experiments/runner/provenance.h"
#include "gpu/device.h"

namespace splash::cli {
namespace {

struct Finding {
  std::string name;
  bool ok = true;
  std::string found;
  std::string advice;  // if not ok
};

Finding cpu() {
  const unsigned cores = std::thread::hardware_concurrency();
  return {
      "CPU", true,
      fmt::format("{}, {} cores, {} OpenMP threads", experiments::cpu_model(), cores, omp_get_max_threads()),
      ""};
}

Finding memory() {
  const double page = static_cast<double>(sysconf(_SC_PAGESIZE));
  const double gib = page * static_cast<double>(sysconf(_SC_PHYS_PAGES)) / (1 << 30);
  const double available = page * static_cast<double>(sysconf(_SC_AVPHYS_PAGES)) / (1 << 30);
  return {"memory", gib >= 2, fmt::format("{:.1f} GiB, {:.1f} GiB free", gib, available),
          "2 GiB are needed for the quick profiles"};
}

Finding program() {
  const bool optimised = build::kBuildType != "Debug";
  return {"build", optimised,
          fmt::format("{} {} ({}, {}), {}", build::kVersion, build::git_commit().substr(0, 12),
                      build::git_state(), build::kBuildType, experiments::toolchain()),
          "a debug build is slow: measure with the release preset"};
}

Finding python() {
  const std::string program = python_program();
  if (program.empty())
    return {"Python", false, "no environment", "./splash makes one; without it there are no plots"};
  const std::string modules = "import h5py, matplotlib, numpy";
  const int code = run_program({program, "-c", modules}, {}, true);
  if (code == 0) return {"Python", true, program + " with h5py, matplotlib and numpy", ""};
  if (code == 127)
    return {"Python", false, program + " cannot be started", "set SPLASH_PYTHON, or let ./splash make .venv"};
  return {"Python", false, program + " lacks h5py, matplotlib or numpy",
          "pip install -r python/requirements.lock, or let ./splash do it"};
}

Finding device() {
  const auto devices = gpu::list_devices();
  if (devices.empty() && front_door_builds_cuda()) {
    return {"GPU", false, "not looked for: the CUDA parts are not built yet",
            "./splash ceilings builds them, for nvcc is here; everything on the CPU works without"};
  }
  if (devices.empty())
    return {"GPU", false, gpu::device_unavailable_reason(), "everything on the CPU works without one"};
  std::string text;
  for (const gpu::DeviceInfo& d : devices) {
    text += fmt::format("{}{} (sm_{}{}, {} multiprocessors, {:.0f} GiB, CUDA driver {})",
                        text.empty() ? "" : "; ", d.name, d.compute_major, d.compute_minor, d.multiprocessors,
                        static_cast<double>(d.memory_bytes) / (1 << 30), d.driver_version);
  }
  return {"GPU", true, text, ""};
}

Finding captures() {
  const std::string file = experiments::project_root() + "/data/captures/minilm.h5";
  const std::string advice = "restore it from the repository, or run data/captures/capture.py";
  if (!std::filesystem::exists(file)) return {"captured Q/K/V", false, "no data/captures/minilm.h5", advice};
  H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);  // no error stack on stderr
  const bool readable = H5Fis_hdf5(file.c_str()) > 0;
  if (!readable) return {"captured Q/K/V", false, "data/captures/minilm.h5 is not whole HDF5", advice};
  return {"captured Q/K/V", true,
          fmt::format("data/captures/minilm.h5, {:.1f} MB",
                      static_cast<double>(std::filesystem::file_size(file)) / 1e6),
          ""};
}

Finding definitions() {
  int good = 0;
  for (const std::string& file : all_definition_files()) {
    try {
      experiments::read_definition(file);
      ++good;
    } catch (const InvalidArgument& error) {
      return {"experiments", false, error.what(), "correct the definition"};
    }
  }
  return {"experiments", good > 0, fmt::format("{} definitions", good),
          "set SPLASH_ROOT to the project's folder"};
}

Finding claims() {
  try {
    const std::size_t count = experiments::read_claims(claims_folder()).size();
    return {"claims", count > 0, fmt::format("{} claims", count), "set SPLASH_ROOT to the project's folder"};
  } catch (const InvalidArgument& error) {
    return {"claims", false, error.what(), "correct the file"};
  }
}

}  // namespace

int cmd_doctor(const Words& words) {
  CLI::App app;
  prepare(app, "doctor", "splash doctor\nsplash doctor --json",
          "What this machine has, what is missing, and what to do about it.");
  bool as_json = false;
  app.add_flag("--json", as_json, "an array of {name, ok, found, advice}");
  parse(app, words);
  const Finding findings[] = {cpu(),    memory(),   program(), definitions(),
                              claims(), captures(), python(),  device()};
  if (as_json) {
    nlohmann::json list = nlohmann::json::array();
    for (const Finding& f : findings) {
      list.push_back({{"name", f.name}, {"ok", f.ok}, {"found", f.found}, {"advice", f.ok ? "" : f.advice}});
    }
    print_json(list);
    return kDone;
  }
  TextTable table({"what", "state", "found", "what to do"});
  for (const Finding& f : findings) {
    table.add({{f.name},
               {f.ok ? "ok" : "missing", f.ok ? Colour::green : Colour::yellow},
               {f.found},
               {f.ok ? "" : f.advice}});
  }
  table.print();
  return kDone;
}

}  // namespace splash::cli
