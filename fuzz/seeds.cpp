// fuzz_seeds SOURCE FOLDER: what the fuzzers begin with, from the project's own files.

#include <filesystem>
#include <fstream>
#include <iterator>
#include <numeric>
#include <regex>

#include "core/kascade_plan.h"
#include "report/hdf5/file.h"
#include "report/io.h"
#include "report/seal.h"
#include "analysis/tests/example_capture.h"
#include "report/tests/example_report.h"
#include "experiments/runner/journal.h"
#include "gpu/engine/tuned.h"

namespace {

using namespace splash;
namespace fs = std::filesystem;

std::string text_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void write(const fs::path& path, const std::string& text) {
  fs::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << text;
}

std::string without_seal(const std::string& report) {
  return report.substr(0, report.rfind("\nsplash-report fnv1a64 "));
}

void write_reports(const fs::path& source, const fs::path& folder) {
  fs::create_directories(folder);
  report::write_report(folder / "example", report::testing::example_report());
  write(folder / "example", without_seal(text_of(folder / "example")));
  report::write_report(folder / "empty", {});
  write(folder / "empty", without_seal(text_of(folder / "empty")));
  write(folder / "ceilings", without_seal(text_of(source / "data/reports/ceilings-h200.h5")));
}

// A corner of the captured tensors, under a name of the fuzzers' own.
void write_captures(const fs::path& source, const fs::path& folder) {
  namespace hdf5 = report::hdf5;
  const hdf5::FloatArray head = hdf5::read_floats(source / "data/captures/minilm.h5", "gpl-3/q", {3, 7}, 4);
  const std::vector<std::string> tokens = hdf5::read_texts(source / "data/captures/minilm.h5", "gpl-3/token");
  const hdf5::File file = hdf5::File::in_memory("captures");
  hdf5::Group text = file.root().create_group("text");
  const std::vector<double> numbers(head.values.begin(), head.values.begin() + 2 * 2 * 16 * 8);
  text.create_doubles("q", {2, 2, 16, 8}, numbers);
  text.create_texts("token", {16}, std::span(tokens).first(16));
  const std::vector<std::byte> image = file.image();
  write(folder / "corner", {reinterpret_cast<const char*>(image.data()), image.size()});
  analysis::testing::write_capture(folder / "heads", {});
  analysis::testing::write_capture(
      folder / "converted",
      {.method = R"({"schema": "splash attention method 1", "default": {"kind": "entmax", "factor": 0.5},)"
                 R"("layers": {"7": {"kind": "entmax", "alpha": [1.25, 1.5, 1.5, 2], "k_keep": 64}}})",
       .kv_heads = {1, 0}});
}

void write_toml(const fs::path& source, const fs::path& folder) {
  for (const char* place : {"experiments/definitions", "data/claims", "data/machines"}) {
    for (const auto& entry : fs::directory_iterator(source / place)) {
      if (entry.path().extension() != ".toml") continue;
      const std::string fuzzed =
          std::regex_replace(text_of(entry.path()), std::regex("kind = \".*\""), "kind = \"fuzz\"");
      write(folder / entry.path().filename(), fuzzed);
    }
  }
  write(folder / "kascade", to_toml({.q_heads = 2, .kv_heads = 2, .layers = {{0, {0, 1}}, {0, {1, 1}}}}));
  write(folder / "small",
        "title = \"t\"\nkind = \"fuzz\"\n[fixed]\ncausal = true\ninput = \"minilm\"\n[axes]\nalpha = "
        "[1.25, 2]\n[zip]\nn = [1, 2]\nseed = [3, 4]\n[quick.axes]\nalpha = [1.5]\n[[expect]]\ncheck = "
        "\"c\"\ncolumn = \"nmse\"\nbelow = 1\n");
}

void write_journal(const fs::path& folder) {
  using namespace splash::experiments;
  const fs::path path = folder / "journal";
  fs::create_directories(folder);
  fs::remove(path);
  {
    Journal journal(path);
    journal.write(JournalHeader{"run", "hash", "quick", "1/1", "2026-01-01T00:00:00Z"});
    JournalEntry entry{"c1", "experiment", "p", "b", "i", 0.5, {}};
    entry.result.numbers = {{"nmse", 1e-9}, {"missing", report::kMissing}};
    entry.result.texts = {{"warning", "none"}};
    entry.result.vectors = {{"time", {1, 2, 3}}};
    entry.result.attachments = {report::testing::example_report().attachments.front()};
    journal.write(entry);
  }
  // As the target wants them: without their checksums.
  write(path, std::regex_replace(text_of(path), std::regex(",\"checksum\":\"[0-9a-f]*\""), ""));
}

void write_tuned(const fs::path& folder) {
  gpu::TunedTable table;
  for (const char* subject : {"entmax-forward", "kascade/8-chosen-block"})
    table.entries.push_back({.library = "0.1.0",
                             .gpu = "Some GPU",
                             .subject = subject,
                             .choice = "default",
                             .seconds = 1.5e-4,
                             .default_seconds = 2e-4});
  write(folder / "two", gpu::tuned_text(table));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const fs::path source = argv[1], folder = argv[2];
  write_reports(source, folder / "report");
  write_captures(source, folder / "captures");
  write_toml(source, folder / "toml");
  write_journal(folder / "journal");
  write_tuned(folder / "tuned");
  write(folder / "ncu_csv/raw", text_of(source / "analysis/tests/data/ncu-raw.csv"));
  write(folder / "ncu_csv/details",
        "\"ID\",\"Process ID\",\"Kernel Name\",\"Block Size\",\"Grid Size\",\"Metric Name\",\"Metric "
        "Unit\",\"Metric "
        "Value\"\n\"0\",\"7\",\"forward_kernel(int)\",\"(256, 1, 1)\",\"(2048, 1, "
        "1)\",\"dram__bytes_read.sum\",\"Kbyte\",\"1.234,50\"\n");
  return 0;
}
