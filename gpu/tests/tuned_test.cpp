// The file of tuned kernels, and which of its entries apply.

#include "gpu/engine/tuned.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>

#include <doctest/doctest.h>

#include "core/error.h"
#include "core/scratch_folder.h"
#include "gpu/entmax/forward.h"
#include "gpu/entmax/knobs.h"

using namespace splash;
using namespace splash::gpu;

namespace {

AttentionSpec some_spec() {
  AttentionSpec spec;
  spec.shape = {1, 4, 2, 300, 500, 64};
  spec.normalizer.alpha = {1.5};
  spec.mask.causal = true;
  return spec;
}

DeviceInfo some_device() {
  DeviceInfo device;
  device.name = "Some GPU";
  device.driver_version = "13.0";
  device.runtime_version = "13.0";
  device.compute_major = 9;
  return device;
}

TunedEntry some_entry(const std::string& subject, const std::string& choice) {
  TunedEntry entry = tuned_entry(subject, some_spec(), Dtype::bf16, some_device());
  entry.choice = choice;
  entry.seconds = 1.25e-4;
  entry.default_seconds = 1.0 / 3;
  entry.inputs = "gaussian, variance 6, seed 1";
  entry.measured = "2025-01-31T12:00:00Z";
  return entry;
}

// Sets what the process uses, and restores it at the end.
struct Using {
  explicit Using(TunedTable table) : before(use_tuned(std::move(table))) {}
  ~Using() { use_tuned(std::move(before)); }
  TunedTable before;
};

}  // namespace

TEST_CASE("a file of tuned kernels reads back as it was written") {
  TunedTable table;
  CHECK(parse_tuned(tuned_text(table)).entries.empty());
  table.put(some_entry("entmax-forward", "sampled_keys=2048"));
  table.put(some_entry("large_dims/7-chosen", "large_dims/6-wgmma"));
  const std::string text = tuned_text(table);
  const TunedTable back = parse_tuned(text);
  REQUIRE(back.entries.size() == 2);
  CHECK(tuned_text(back) == text);
  CHECK(back.entries[0].seconds == 1.25e-4);
  CHECK(back.entries[0].default_seconds == 1.0 / 3);
  CHECK(back.entries[0].problem == "1x4x2x300x500x64, bfloat16, causal, entmax 1.5, all");
  CHECK(back.entries[1].choice == "large_dims/6-wgmma");
  table.put(some_entry("entmax-forward", "default"));  // replaces the first
  CHECK(table.entries.size() == 2);
  CHECK(table.entries[0].choice == "default");
  table.entries[0].gpu = "a \"GPU\"";
  CHECK_THROWS_AS(tuned_text(table), InvalidArgument);
}

TEST_CASE("entries count for their library, GPU, driver, subject and problem alone") {
  TunedTable table;
  table.put(some_entry("entmax-forward", "sampled_keys=2048"));
  const auto finds = [&](const AttentionSpec& spec, Dtype dtype, const DeviceInfo& device) {
    return table.find("entmax-forward", spec, dtype, device) != nullptr;
  };
  const AttentionSpec spec = some_spec();
  const DeviceInfo device = some_device();
  CHECK(finds(spec, Dtype::bf16, device));
  CHECK(table.find("entmax-backward", spec, Dtype::bf16, device) == nullptr);
  CHECK(!finds(spec, Dtype::f16, device));
  const auto other_device = [&](auto change) {
    DeviceInfo other = device;
    change(other);
    return other;
  };
  CHECK(!finds(spec, Dtype::bf16, other_device([](auto& d) { d.name = "Other GPU"; })));
  CHECK(!finds(spec, Dtype::bf16, other_device([](auto& d) { d.driver_version = "13.1"; })));
  CHECK(!finds(spec, Dtype::bf16, other_device([](auto& d) { d.runtime_version = "12.9"; })));
  CHECK(finds(spec, Dtype::bf16,  // described as in a data sheet
              other_device([](auto& d) { d.driver_version = d.runtime_version = ""; })));
  const auto other_spec = [&](auto change) {
    AttentionSpec other = spec;
    change(other);
    return other;
  };
  CHECK(!finds(other_spec([](auto& s) { s.shape.kv_len = 501; }), Dtype::bf16, device));
  CHECK(!finds(other_spec([](auto& s) { s.mask.causal = false; }), Dtype::bf16, device));
  CHECK(!finds(other_spec([](auto& s) { s.normalizer.alpha = {1.75}; }), Dtype::bf16, device));
  CHECK(!finds(other_spec([](auto& s) { s.normalizer.alpha = {1.5, 1.5, 1.5, 1.75}; }), Dtype::bf16, device));
  CHECK(finds(other_spec([](auto& s) { s.normalizer.alpha = {1.5, 1.5, 1.5, 1.5}; }), Dtype::bf16, device));
  CHECK(!finds(other_spec([](auto& s) { s.selection = {.kind = SelectionKind::top_k_row, .k_keep = 8}; }),
               Dtype::bf16, device));
  table.entries[0].library = "0.0.1";
  CHECK(!finds(spec, Dtype::bf16, device));
}

TEST_CASE("files that are none of tuned kernels are refused in one sentence, never a crash") {
  TunedTable table;
  table.put(some_entry("entmax-forward", "sampled_keys=2048"));
  const std::string text = tuned_text(table);
  for (std::size_t i = 0; i + 2 < text.size(); ++i)  // all but the last two characters, "}\n"
    CHECK_THROWS_AS(parse_tuned(text.substr(0, i)), InvalidArgument);
  for (std::size_t i = 0; i < text.size(); ++i) {
    for (const char c : {'\0', '"', '\\', '{', '9', '\xFF'}) {
      std::string changed = text;
      changed[i] = c;
      try {
        static_cast<void>(parse_tuned(changed));  // some changes only alter a text or a number
      } catch (const InvalidArgument& error) {
        CHECK(std::string(error.what()).find('\n') == std::string::npos);
      }
    }
  }
  CHECK_THROWS_AS(parse_tuned(""), InvalidArgument);
  CHECK_THROWS_AS(parse_tuned(text + "x"), InvalidArgument);
  CHECK_THROWS_AS(parse_tuned(std::string(1 << 20, '[')), InvalidArgument);
  CHECK_THROWS_WITH_AS(parse_tuned("{\"format\": \"other\", \"entries\": []}"),
                       doctest::Contains("its format is 'other'"), InvalidArgument);
  std::string unknown = text;
  unknown.replace(unknown.find("\"gpu\""), 5, "\"gpv\"");
  CHECK_THROWS_WITH_AS(parse_tuned(unknown), doctest::Contains("there is no field 'gpv'"), InvalidArgument);
  std::string infinite = text;
  infinite.replace(infinite.find("0.000125"), 8, "1e999999");
  CHECK_THROWS_WITH_AS(parse_tuned(infinite), doctest::Contains("expected a number"), InvalidArgument);
}

TEST_CASE("a file that is missing is empty; one that is too large, or a folder, is refused") {
  const ScratchFolder folder;
  const std::string path = folder.file("tuned.json");
  CHECK(read_tuned(path).entries.empty());
  CHECK_THROWS_AS(read_tuned(folder.string()), InvalidArgument);
  std::ofstream(path) << std::string(static_cast<std::size_t>(kMostTunedBytes) + 1, ' ');
  CHECK_THROWS_WITH_AS(read_tuned(path), doctest::Contains("more than the allowed"), InvalidArgument);
  std::ofstream(path) << "{}";
  CHECK_THROWS_WITH_AS(read_tuned(path), doctest::Contains("is no file of tuned kernels"), InvalidArgument);
}

TEST_CASE("where the file lies") {
  const char* const before = std::getenv("SPLASH_TUNED");
  const std::string kept = before == nullptr ? "" : before;
  setenv("SPLASH_TUNED", "off", 1);
  CHECK(tuned_path().empty());
  setenv("SPLASH_TUNED", "some/file.json", 1);
  CHECK(tuned_path() == "some/file.json");
  unsetenv("SPLASH_TUNED");
  CHECK((tuned_path().empty() || tuned_path().ends_with("/adaptive-splash/tuned.json")));
  if (before != nullptr) setenv("SPLASH_TUNED", kept.c_str(), 1);
}

TEST_CASE("a tuning as text, and what it refuses") {
  using entmax::Tuning;
  CHECK(to_string(Tuning{}) == "default");
  CHECK(entmax::tuning_from_string("default") == Tuning{});
  const Tuning tuning{.portable = 1, .heads_together = 8, .long_parts = 128};
  CHECK(to_string(tuning) == "portable=1,heads_together=8,long_parts=128");
  CHECK(entmax::tuning_from_string(to_string(tuning)) == tuning);
  for (const entmax::Knob& knob : entmax::knobs()) {
    CAPTURE(knob.name);
    CHECK(std::ranges::find(knob.allowed, Tuning{}.*knob.value) != knob.allowed.end());
    for (const int value : knob.allowed) {
      Tuning one;
      one.*knob.value = value;
      CHECK_NOTHROW(entmax::validate(one));
      CHECK(entmax::tuning_from_string(to_string(one)) == one);
    }
  }
  CHECK_THROWS_WITH_AS(entmax::validate({.sampled_keys = 5000}),
                       "sampled_keys is 5000; allowed: 512, 1024, 2048, 4096, 8192, 16384", InvalidArgument);
  for (const char* text : {"", "portable", "portable=", "portable=1,", "=1", "portable=x", "portable=1x",
                           "portable=99999999999999999999", "nope=1", ",", "sampled_keys=-1"})
    CHECK_THROWS_AS(entmax::tuning_from_string(text), InvalidArgument);
}

TEST_CASE("the flagship takes from the cache the knobs of each pass, and nothing that is not allowed") {
  const AttentionSpec spec = some_spec();
  const DeviceInfo device = some_device();
  const auto tuned = [&] { return entmax::tuned_for(spec, Dtype::bf16, device); };
  TunedTable table;
  table.put(some_entry(entmax::kForwardSubject, "sampled_keys=2048,long_parts=128"));
  table.put(some_entry(entmax::kBackwardSubject, "long_parts=1024,portable=1"));
  const Using cache(table);
  CHECK(tuned() == entmax::Tuning{.sampled_keys = 2048, .long_parts = 1024});
  table.put(some_entry(entmax::kForwardSubject, "sampled_keys=1000000000"));
  use_tuned(table);
  CHECK(tuned() == entmax::Tuning{.long_parts = 1024});
  use_tuned({});
  CHECK(tuned() == entmax::Tuning{});
}

TEST_CASE("a tuning may ask for the portable path where Hopper's could be, and is heeded only then") {
  const AttentionSpec spec = some_spec();
  using entmax::ForwardPath;
  const entmax::Tuning portable{.portable = 1};
  CHECK(entmax::choose_path(spec, Dtype::bf16, ForwardPath::fastest, 90) == ForwardPath::hopper);
  CHECK(entmax::choose_path(spec, Dtype::bf16, ForwardPath::fastest, 90, portable) == ForwardPath::portable);
  CHECK(entmax::choose_path(spec, Dtype::bf16, ForwardPath::hopper, 90, portable) == ForwardPath::hopper);
  CHECK(entmax::choose_path(spec, Dtype::bf16, ForwardPath::fastest, 80) == ForwardPath::portable);
}
