#include "experiments/runner/journal.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/random.h"
#include "core/scratch_folder.h"
#include "experiments/runner/case_json.h"
#include "experiments/tests/toy_kind.h"

using namespace splash;
using namespace splash::experiments;
using tests::contains;
using tests::message_of;

namespace {

JournalEntry entry(const std::string& id) {
  JournalEntry made{id, "e", "p", "b", "i", 0.25, {}};
  made.result.numbers["y"] = 0.1;
  return made;
}

void append_raw(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::app | std::ios::binary) << text;
}

}  // namespace

TEST_CASE("doubles keep every bit through JSON") {
  CaseResult result;
  const CounterRandom random(7);
  std::vector<double>& values = result.vectors["v"];
  for (uint64_t i = 0; i < 20000; ++i) values.push_back(std::bit_cast<double>(random.bits(i)));
  for (const double special : {0.0, -0.0, 5e-324, 1.7976931348623157e308, 0.1, 1.0, 1e23, -1e15})
    values.push_back(special);
  const double infinity = std::numeric_limits<double>::infinity();
  result.numbers = {{"inf", infinity}, {"minus", -infinity}, {"nan", std::nan("")}, {"zero", -0.0}};
  result.texts["t"] = "quote \" tab \t line \n α";
  const CaseResult back = case_result_from_json(nlohmann::json::parse(to_json(result).dump()));
  REQUIRE(back.vectors.at("v").size() == values.size());
  int64_t different = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double a = values[i], b = back.vectors.at("v")[i];
    const bool same =
        std::isnan(a) ? std::isnan(b) : std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b);
    different += !same;
  }
  CHECK(different == 0);
  CHECK(back.numbers.at("inf") == infinity);
  CHECK(back.numbers.at("minus") == -infinity);
  CHECK(std::isnan(back.numbers.at("nan")));
  CHECK(std::signbit(back.numbers.at("zero")));
  CHECK(back.texts == result.texts);
}

TEST_CASE("a sealed line is JSON, and any change breaks the seal") {
  const std::string line = seal(R"({"a":1,"b":"x"})");
  CHECK(nlohmann::json::parse(line)["checksum"].get<std::string>().size() == 16);
  std::string object;
  CHECK(unseal(line, object));
  CHECK(object == R"({"a":1,"b":"x"})");
  for (std::size_t i = 0; i < line.size(); ++i) {
    std::string other = line;
    other[i] ^= 1;
    CHECK_FALSE(unseal(other, object));
    CHECK_FALSE(unseal(line.substr(0, i), object));
  }
}

TEST_CASE("a journal cut at any byte gives its whole lines back") {
  const ScratchFolder scratch;
  const std::string path = scratch.file("r.h5.journal");
  {
    Journal journal(path);
    journal.write(JournalHeader{"run-1", "hash", "quick", "1/1", "now"});
    for (const char* id : {"a", "b", "c"}) {
      JournalEntry made = entry(id);
      journal.write(made);
    }
  }
  std::ifstream file(path, std::ios::binary);
  const std::string whole((std::istreambuf_iterator<char>(file)), {});
  for (std::size_t length = 0; length <= whole.size(); ++length) {
    std::ofstream(path, std::ios::trunc | std::ios::binary) << whole.substr(0, length);
    Journal journal(path);
    const JournalContents contents = journal.read();
    const int64_t lines =
        std::count(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(length), '\n');
    CHECK(contents.has_header == (lines > 0));
    CHECK(static_cast<int64_t>(contents.entries.size()) == std::max<int64_t>(0, lines - 1));
    CHECK(contents.damaged_lines == 0);
    // After the cut, new lines are not appended to the torn one.
    journal.cut(contents.whole_bytes);
    if (!contents.has_header) journal.write(JournalHeader{"run-2", "hash", "quick", "1/1", "now"});
    JournalEntry more = entry("d");
    journal.write(more);
    CHECK(journal.read().whole_bytes > contents.whole_bytes);
    CHECK(journal.read().damaged_lines == 0);
  }
}

TEST_CASE("a damaged line in the middle costs its case only") {
  const ScratchFolder scratch;
  const std::string path = scratch.file("j");
  {
    Journal journal(path);
    journal.write(JournalHeader{"run-1", "hash", "full", "1/1", "now"});
  }
  append_raw(path, "{\"rubbish\":1}\n");
  Journal journal(path);
  JournalEntry made = entry("a");
  journal.write(made);
  const JournalContents contents = journal.read();
  CHECK(contents.header.run_id == "run-1");
  CHECK(contents.damaged_lines == 1);
  REQUIRE(contents.entries.size() == 1);
  CHECK(contents.entries[0].result.numbers.at("y") == 0.1);
  CHECK(contents.entries[0].seconds == 0.25);
}

TEST_CASE("a journal belongs to one run at a time, in a folder that can be written") {
  const ScratchFolder scratch;
  const std::string path = scratch.file("j");
  {
    Journal first(path);
    CHECK(contains(message_of([&] { Journal second(path); }), "another run is writing this report"));
    first.remove();
  }
  CHECK_FALSE(std::filesystem::exists(path));
  CHECK(contains(message_of([&] { Journal nowhere(scratch.file("no/such/j")); }), "cannot write"));
}
