#include "experiments/runner/run.h"

#include <filesystem>
#include <fstream>
#include <set>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "core/error.h"
#include "core/random.h"
#include "core/scratch_folder.h"
#include "experiments/runner/journal.h"
#include "experiments/tests/toy_kind.h"
#include "report/io.h"
#include "report/merge.h"

using namespace splash;
using namespace splash::experiments;
using tests::contains;
using tests::message_of;
using tests::toy;

namespace {

namespace fs = std::filesystem;

Definition definition(const std::string& name = "t") {
  return parse_definition(
      "title = 'T'\nkind = 'toy'\n[fixed]\nx = 1.7\n[axes]\nmode = ['plain', 'signed']\nn = [0, 1, 2, 3, 4]\n"
      "[quick.axes]\nn = [2]\n",
      name, name + ".toml");
}

RunRequest request(const std::string& path, Leftover leftover = Leftover::refuse) {
  RunRequest made;
  made.definitions = {definition()};
  made.report_path = path;
  made.leftover = leftover;
  made.title = "T";
  made.argv = "splash test";
  made.resume_command = "splash test --resume";
  return made;
}

// Everything that must not depend on when and how often a run was killed.
std::string fingerprint(const report::Report& report) {
  std::string text =
      report.title + report.status + report.provenance.experiment_toml + report.provenance.input_hashes;
  for (const report::Column& column : report.results) {
    if (!column.info.reproducible && column.info.name != "case_id") continue;
    text += fmt::format("\n{} {} {} {}:", column.info.name, column.info.units, column.info.missing_reason,
                        column.width);
    for (const double value : column.numbers) text += fmt::format(" {}", value);
    for (const std::string& value : column.texts) text += fmt::format(" <{}>", value);
  }
  std::set<std::string> attachments;  // in a file they are ordered by name
  for (const report::Attachment& a : report.attachments) {
    attachments.insert(fmt::format("\n{} {} {}", a.case_id, a.name, fmt::join(a.numbers, ",")));
  }
  for (const std::string& attachment : attachments) text += attachment;
  return text;
}

std::string undisturbed(const ScratchFolder& scratch) {
  const std::string path = scratch.file("undisturbed.h5");
  run(request(path));
  return fingerprint(report::read_report(path));
}

std::string slurp(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

TEST_CASE("a run writes its report and leaves no journal") {
  const ScratchFolder scratch;
  toy() = {};
  const RunOutcome outcome = run(request(scratch.file("deep/down/r.h5")));
  CHECK(outcome.evaluated == 10);
  CHECK(outcome.reused == 0);
  CHECK(toy().evaluations == 10);
  CHECK_FALSE(fs::exists(scratch.file("deep/down/r.h5.journal")));
  const report::Report report = report::read_report(scratch.file("deep/down/r.h5"));
  CHECK(report.status == "complete");
  CHECK(report.cases() == 10);
  CHECK(report.attachments.size() == 2);
  CHECK(fingerprint(report) == fingerprint(outcome.report));
}

TEST_CASE("a journal cut anywhere, resumed, gives the report of an undisturbed run") {
  const ScratchFolder scratch;
  toy() = {};
  const std::string expected = undisturbed(scratch);
  const std::string path = scratch.file("r.h5");

  // The journal of a run that fails in its last case.
  toy() = {.fail_at = 9};
  CHECK(contains(message_of([&] { run(request(path)); }), "case t mode=signed n=4: the toy breaks"));
  CHECK_FALSE(fs::exists(path));
  const std::string journal = slurp(path + ".journal");
  REQUIRE(std::count(journal.begin(), journal.end(), '\n') == 10);

  const CounterRandom random(3);
  for (uint64_t i = 0; i < 25; ++i) {
    const auto length = static_cast<std::size_t>(random.uniform(i) * static_cast<double>(journal.size() + 1));
    CAPTURE(length);
    std::ofstream(path + ".journal", std::ios::trunc | std::ios::binary) << journal.substr(0, length);
    fs::remove(path);
    toy() = {};
    const RunOutcome outcome = run(request(path, Leftover::resume));
    CHECK(outcome.evaluated + outcome.reused == 10);
    CHECK(toy().evaluations == outcome.evaluated);
    CHECK(fingerprint(report::read_report(path)) == expected);
    CHECK_FALSE(fs::exists(path + ".journal"));
  }
}

TEST_CASE("a case that cannot be completed is named, and what was evaluated is kept") {
  const ScratchFolder scratch;
  const std::string expected = [&] {
    toy() = {};
    return undisturbed(scratch);
  }();
  const std::string path = scratch.file("r.h5");
  toy() = {.completion_fails = true};
  const std::string message = message_of([&] { run(request(path)); });
  CHECK(contains(message, "n=3: the toy is not whole"));
  CHECK_FALSE(fs::exists(path));

  toy() = {};
  const RunOutcome outcome = run(request(path, Leftover::resume));
  CHECK(outcome.reused == 10);
  CHECK(toy().evaluations == 0);
  const report::Report report = report::read_report(path);
  CHECK(fingerprint(report) == expected);
  for (std::size_t i = 0; i < 10; ++i)
    CHECK(report.find("twice")->numbers[i] == 2 * report.find("y")->numbers[i]);
}

TEST_CASE("a leftover journal is never taken or thrown away unasked") {
  const ScratchFolder scratch;
  const std::string path = scratch.file("r.h5");
  toy() = {.fail_at = 4};
  CHECK_THROWS_AS(run(request(path)), Unsupported);
  toy() = {};
  const std::string sentence = message_of([&] { run(request(path)); });
  CHECK(contains(sentence, "--resume"));
  CHECK(contains(sentence, "--restart"));
  CHECK(toy().evaluations == 0);

  RunRequest quick = request(path, Leftover::resume);
  quick.quick = true;
  CHECK(contains(message_of([&] { run(quick); }), "belongs to a run of the full profile"));
  RunRequest shard = request(path, Leftover::resume);
  shard.shard = {1, 2};
  CHECK(contains(message_of([&] { run(shard); }), "belongs to shard 1/1, not 1/2"));

  CHECK(run(request(path, Leftover::restart)).evaluated == 10);
}

TEST_CASE("changed inputs and new parameters are run again, the rest is kept") {
  const ScratchFolder scratch;
  const std::string path = scratch.file("r.h5");
  toy() = {.fail_at = 6};
  CHECK_THROWS_AS(run(request(path)), Unsupported);
  toy() = {.inputs = "inputs-2"};
  CHECK(run(request(path, Leftover::resume)).evaluated == 10);

  toy() = {.fail_at = 6};
  CHECK_THROWS_AS(run(request(path)), Unsupported);
  toy() = {};
  RunRequest changed = request(path, Leftover::resume);
  override_parameter(changed.definitions[0], "mode=signed");
  const RunOutcome outcome = run(changed);
  CHECK(outcome.reused == 1);  // the case: signed, n = 0
  CHECK(outcome.evaluated == 4);
}

TEST_CASE("resuming a finished report does nothing") {
  const ScratchFolder scratch;
  const std::string path = scratch.file("r.h5");
  toy() = {};
  run(request(path));
  const std::string before = slurp(path);
  toy() = {};
  CHECK(run(request(path, Leftover::resume)).reused == 10);
  CHECK(toy().evaluations == 0);
  CHECK(slurp(path) == before);
}

TEST_CASE("a preview lists the cases and what is recorded, and runs and writes nothing") {
  const ScratchFolder scratch;
  const std::string path = scratch.file("r.h5");
  toy() = {};
  RunRequest shard = request(path);
  shard.shard = {2, 3};
  const Preview before = preview(shard);
  CHECK(before.cases.size() == 3);
  CHECK(before.of_all_shards == 10);
  CHECK(before.cases.front().index == 1);
  CHECK(before.names.front() != before.names.back());
  CHECK_FALSE(before.recorded.front());
  CHECK(toy().evaluations == 0);
  CHECK(fs::is_empty(scratch.file("")));

  toy() = {.fail_at = 6};
  CHECK_THROWS_AS(run(request(path)), Unsupported);
  const std::string journal = slurp(path + ".journal");
  const auto recorded = [&] {
    const Preview now = preview(request(path, Leftover::resume));
    return std::count(now.recorded.begin(), now.recorded.end(), true);
  };
  CHECK(recorded() == 6);
  CHECK(contains(message_of([&] { preview(request(path)); }), "--restart"));
  CHECK(preview(request(path, Leftover::restart)).recorded == std::vector<bool>(10, false));
  CHECK(contains(message_of([&] { preview(shard); }), "interrupted run"));
  CHECK(slurp(path + ".journal") == journal);
  toy() = {};
  run(request(path, Leftover::resume));
  CHECK(recorded() == 10);
}

TEST_CASE("merged shards equal the whole") {
  const ScratchFolder scratch;
  toy() = {};
  const std::string expected = undisturbed(scratch);
  std::vector<report::Report> shards;
  for (int64_t i = 1; i <= 3; ++i) {
    RunRequest one = request(scratch.file(fmt::format("s{}.h5", i)));
    one.shard = {i, 3};
    run(one);
    shards.push_back(report::read_report(one.report_path));
    CHECK(shards.back().status == "partial");
  }
  CHECK(fingerprint(report::merge_reports(shards)) == expected);
}

TEST_CASE("several experiments share one table") {
  const ScratchFolder scratch;
  toy() = {};
  RunRequest both = request(scratch.file("r.h5"));
  both.definitions = {definition("first"), definition("second")};
  const RunOutcome outcome = run(both);
  CHECK(outcome.evaluated == 10);
  CHECK(outcome.reused == 10);  // the very same cases
  const report::Report report = report::read_report(both.report_path);
  CHECK(report.cases() == 20);
  CHECK(report.find("experiment")->texts[10] == "second");
  CHECK(report.find("case_index")->numbers[10] == 0);
  CHECK(report.attachments.size() == 2);
}

TEST_CASE("nothing is run where the report cannot be written or a case is wrong") {
  const ScratchFolder scratch;
  toy() = {};
  std::ofstream(scratch.file("file")) << "x";
  CHECK_FALSE(message_of([&] { run(request(scratch.file("file/r.h5"))); }).empty());
  fs::create_directory(scratch.file("folder"));
  CHECK(contains(message_of([&] { run(request(scratch.file("folder"))); }), "is a folder"));
  RunRequest wrong = request(scratch.file("r.h5"));
  override_parameter(wrong.definitions[0], "n=-1");
  CHECK(contains(message_of([&] { run(wrong); }), "n is negative"));
  CHECK_FALSE(fs::exists(scratch.file("r.h5.journal")));
  CHECK(toy().evaluations == 0);
}
