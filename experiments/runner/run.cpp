#include "experiments/runner/run.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <map>
#include <optional>
#include <set>

#include <fmt/format.h>

#include "core/error.h"
#include "core/parallel.h"
#include "experiments/runner/ceilings.h"
#include "experiments/runner/hash.h"
#include "experiments/runner/journal.h"
#include "experiments/runner/narrate.h"
#include "experiments/runner/progress.h"
#include "experiments/runner/provenance.h"
#include "experiments/runner/record.h"
#include "experiments/runner/stop.h"
#include "experiments/runner/value.h"
#include "gpu/device.h"
#include "report/atomic_file.h"
#include "report/io.h"

namespace splash::experiments {
namespace {

namespace fs = std::filesystem;

std::string definitions_hash(const RunRequest& request, const std::vector<PlannedCase>& cases) {
  return hash_of(record(request.definitions, request.quick, cases));
}

// "accuracy alpha=1.5 k_keep=8": the experiment, and what tells this case from its other cases.
std::string describe(const RunRequest& request, const PlannedCase& planned) {
  const Definition& definition = request.definitions[planned.experiment];
  const Profile& profile = definition.profile(request.quick);
  std::string text = definition.name;
  for (const auto* axes : {&profile.zip, &profile.axes}) {
    for (const Axis& axis : *axes)
      text += fmt::format(" {}={}", axis.name, to_text(planned.parameters.at(axis.name)));
  }
  return text;
}

// Why a case is run although the journal is resumed and holds no result of it; "" if it was simply not
// reached.
std::string why_again(const PlannedCase& planned, const std::string& experiment,
                      const JournalContents& journal, bool same_definitions) {
  std::string reason = same_definitions ? "" : "its parameters are new";
  for (const JournalEntry& entry : journal.entries) {
    if (entry.experiment != experiment || entry.parameters_hash != planned.parameters_hash) continue;
    const bool binary = entry.binary_hash != binary_hash(), inputs = entry.input_hash != planned.input_hash;
    reason = binary && inputs ? "the binary and its inputs changed"
             : binary         ? "the binary changed"
                              : "its inputs changed";
  }
  return reason;
}

void require_same_run(const RunRequest& request, const JournalHeader& header, const std::string& path) {
  const std::string profile = request.quick ? "quick" : "full";
  if (header.profile != profile) {
    throw InvalidArgument(fmt::format(
        "{} belongs to a run of the {} profile, not the {} one; resume with that profile, or give --restart",
        path, header.profile, profile));
  }
  if (header.shard != to_string(request.shard)) {
    throw InvalidArgument(fmt::format("{} belongs to shard {}, not {}; resume that shard, or give --restart",
                                      path, header.shard, to_string(request.shard)));
  }
}

// The journal's results that serve this run, by case id. Reports how many do not, and why.
std::map<std::string, CaseResult> usable(const RunRequest& request, const std::vector<PlannedCase>& cases,
                                         JournalContents& journal, bool same_definitions) {
  std::map<std::string, CaseResult> found;
  for (JournalEntry& entry : journal.entries) found[entry.case_id] = std::move(entry.result);
  std::map<std::string, int64_t> again;
  std::map<std::string, CaseResult> kept;
  for (const PlannedCase& planned : cases) {
    if (const auto entry = found.find(planned.case_id); entry != found.end()) {
      kept[planned.case_id] = std::move(entry->second);
      continue;
    }
    const std::string reason =
        why_again(planned, request.definitions[planned.experiment].name, journal, same_definitions);
    if (reason.empty()) continue;
    ++again[reason];
    if (request.verbose) narrate("runs {}: {}", describe(request, planned), reason);
  }
  for (const auto& [reason, count] : again)
    narrate("{} case{} to run because {}", count, count == 1 ? "" : "s", reason);
  if (journal.damaged_lines > 0)
    narrate("{} damaged lines of the journal are ignored; their cases are run again", journal.damaged_lines);
  return kept;
}

// A finished report of exactly these cases, if there is one. Nothing is left to do then.
std::optional<report::Report> finished(const RunRequest& request, const std::vector<PlannedCase>& cases) {
  if (!fs::exists(request.report_path)) return std::nullopt;
  try {
    report::Report report = report::read_report(request.report_path);
    const report::Column* ids = report.find("case_id");
    if (ids == nullptr || ids->texts.size() != cases.size()) return std::nullopt;
    for (std::size_t i = 0; i < cases.size(); ++i) {
      if (ids->texts[i] != cases[i].case_id) return std::nullopt;
    }
    return report;
  } catch (const ReportError&) {
    return std::nullopt;  // no report of ours: it is replaced at the end
  }
}

[[noreturn]] void refuse_leftover(const std::string& path) {
  throw InvalidArgument(fmt::format(
      "{} was left by an interrupted run; give --resume to go on with it or --restart to begin again", path));
}

// Adds the case's name to the message of the current exception. Keeps its type, which decides the exit code.
[[noreturn]] void rethrow_named(const std::string& name) {
  const std::string prefix = fmt::format("case {}: ", name);
  try {
    throw;
  } catch (const DeviceError& error) {
    throw DeviceError(prefix + error.what());
  } catch (const Unsupported& error) {
    throw Unsupported(prefix + error.what());
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(prefix + error.what());
  } catch (const ReportError& error) {
    throw ReportError(prefix + error.what());
  } catch (const std::exception& error) {
    throw Error(prefix + error.what());
  }
}

std::string farewell(const RunRequest& request) {
  return fmt::format("splash: interrupted; finished cases are kept. Go on with: {}", request.resume_command);
}

class Runner {
 public:
  explicit Runner(const RunRequest& request)
      : request_(request),
        all_cases_(plan(request.definitions, request.quick, request.cases)),
        cases_(cases_of(request.shard, all_cases_)) {}

  RunOutcome run() {
    if (needs_device()) gpu::require_device();
    report::prepare_place(request_.report_path);
    const std::string path = journal_path(request_.report_path);
    Journal journal(path);
    const bool left_over = !journal.is_new();
    if (left_over && request_.leftover == Leftover::refuse) refuse_leftover(path);
    if (!left_over && request_.leftover == Leftover::resume) {
      if (auto report = finished(request_, cases_)) {
        journal.remove();
        narrate("{} already holds all {} cases: nothing to resume", request_.report_path, cases_.size());
        return {std::move(*report), 0, static_cast<int64_t>(cases_.size()), false};
      }
      if (!request_.so_far)
        narrate("nothing to resume at {}: starting from the beginning", request_.report_path);
    }
    if (request_.so_far && journal.is_new()) {
      journal.remove();
      throw InvalidArgument(fmt::format("there is no {}: no case is done", path));
    }
    auto known = open(journal, path);
    if (request_.so_far) leave_out_what_is_not_in(known, path);
    return evaluate(journal, known);
  }

 private:
  bool some_kind(bool (Kind::*property)() const) const {
    return std::any_of(request_.definitions.begin(), request_.definitions.end(),
                       [&](const Definition& d) { return (find_kind(d.kind).*property)(); });
  }
  bool needs_device() const { return some_kind(&Kind::needs_device); }
  bool times_cpu() const { return some_kind(&Kind::times_cpu); }

  void leave_out_what_is_not_in(const std::map<std::string, CaseResult>& known, const std::string& path) {
    std::erase_if(cases_, [&](const PlannedCase& one) { return !known.contains(one.case_id); });
    if (cases_.empty()) throw InvalidArgument(fmt::format("{} holds no result of these cases", path));
  }

  // Prepares the journal for the first new case, and returns the results that it already holds.
  std::map<std::string, CaseResult> open(Journal& journal, const std::string& path) {
    const std::string hash = definitions_hash(request_, all_cases_);
    JournalContents contents;
    if (request_.leftover == Leftover::resume) contents = journal.read();
    if (contents.has_header) {
      require_same_run(request_, contents.header, path);
      header_ = contents.header;
      journal.cut(contents.whole_bytes);
      auto known = usable(request_, cases_, contents, header_.definitions_hash == hash);
      narrate("resuming run {}: {} of {} cases are done", header_.run_id, known.size(), cases_.size());
      return known;
    }
    header_ = {new_run_id(), hash, request_.quick ? "quick" : "full", to_string(request_.shard), utc_now()};
    journal.cut(0);
    try {
      journal.write(header_);
    } catch (...) {
      journal.remove();  // nothing in it is worth keeping
      throw;
    }
    return {};
  }

  RunOutcome evaluate(Journal& journal, std::map<std::string, CaseResult>& known) {
    RunOutcome outcome;
    std::vector<CaseResult> results(cases_.size());
    {
      Progress progress(static_cast<int64_t>(cases_.size() - known.size()), request_.verbose);
      for (std::size_t i = 0; i < cases_.size(); ++i) {
        if (const auto found = known.find(cases_[i].case_id); found != known.end()) {
          results[i] = found->second;
          ++outcome.reused;
          continue;
        }
        if (StopGuard::requested()) break;
        results[i] = evaluate_case(journal, progress, cases_[i]);
        known[cases_[i].case_id] = results[i];  // two experiments may ask for the same case
        ++outcome.evaluated;
      }
    }
    const bool evaluated = outcome.evaluated + outcome.reused == static_cast<int64_t>(cases_.size());
    if (evaluated && times_cpu()) cpu_ceilings();  // while nothing else runs
    if (!evaluated || !complete(results)) {
      write_stderr(farewell(request_) + "\n");
      outcome.interrupted = true;
      return outcome;
    }
    outcome.report = make_report(std::move(results));
    if (request_.judge) request_.judge(outcome.report);
    report::write_report(request_.report_path, outcome.report);
    if (!request_.so_far) journal.remove();
    return outcome;
  }

  CaseResult evaluate_case(Journal& journal, Progress& progress, const PlannedCase& planned) {
    const Definition& definition = request_.definitions[planned.experiment];
    const std::string name = describe(request_, planned);
    progress.begin(name);
    const auto start = std::chrono::steady_clock::now();
    JournalEntry entry{
        planned.case_id, definition.name, planned.parameters_hash, binary_hash(), planned.input_hash, 0, {}};
    try {
      entry.result = find_kind(definition.kind).evaluate(planned.parameters);
    } catch (...) {
      progress.clear();
      rethrow_named(name);
    }
    entry.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    journal.write(entry);
    progress.done(entry.seconds);
    return std::move(entry.result);
  }

  // Returns false if a signal ended it.
  bool complete(std::vector<CaseResult>& results) const {
    parallel_for(static_cast<int64_t>(cases_.size()), 1, [&](int64_t i) {
      if (StopGuard::requested()) return;
      try {
        const Definition& definition = request_.definitions[cases_[i].experiment];
        find_kind(definition.kind).complete(cases_[i].parameters, results[i]);
      } catch (...) {
        rethrow_named(describe(request_, cases_[i]));
      }
    });
    return !StopGuard::requested();
  }

  report::Report make_report(std::vector<CaseResult> results) const {
    report::Report report;
    report.title = request_.title;
    report.run_id = header_.run_id;
    const bool all = cases_.size() == all_cases_.size() && request_.cases == Cases::all;
    report.status = all ? "complete" : "partial";
    report.provenance = collect_provenance(request_.definitions, all_cases_, request_.argv);
    report.provenance.experiment_toml = record(request_.definitions, request_.quick, all_cases_);
    report.provenance.started = header_.started;
    report.provenance.finished = utc_now();
    report.history = fmt::format("{} {}", report.provenance.finished, request_.argv);
    report.dimensions = dimensions_of(request_.definitions);
    if (needs_device()) report.ceilings = measured_ceilings();
    if (times_cpu())
      report.ceilings.insert(report.ceilings.end(), cpu_ceilings().begin(), cpu_ceilings().end());
    report.results = make_table(request_.definitions, cases_, results);
    std::set<std::string> attached;  // attachments of a case that two experiments share are added once
    for (std::size_t i = 0; i < cases_.size(); ++i) {
      if (!attached.insert(cases_[i].case_id).second) continue;
      for (report::Attachment& attachment : results[i].attachments) {
        attachment.case_id = cases_[i].case_id;
        report.attachments.push_back(std::move(attachment));
      }
    }
    return report;
  }

  const RunRequest& request_;
  std::vector<PlannedCase> all_cases_, cases_;  // the requested cases of all shards; of this shard
  JournalHeader header_;
};

}  // namespace

Preview preview(const RunRequest& request) {
  const std::vector<PlannedCase> all = plan(request.definitions, request.quick, request.cases);
  Preview found;
  found.cases = cases_of(request.shard, all);
  found.of_all_shards = static_cast<int64_t>(all.size());
  const std::string path = journal_path(request.report_path);
  const bool left_over = fs::exists(path) && !fs::is_empty(path);
  std::set<std::string> kept;
  bool all_kept = false;
  if (left_over && request.leftover == Leftover::refuse) refuse_leftover(path);
  if (request.leftover == Leftover::resume) {
    const JournalContents journal = left_over ? read_journal(path) : JournalContents{};
    if (journal.has_header) require_same_run(request, journal.header, path);
    for (const JournalEntry& entry : journal.entries) kept.insert(entry.case_id);
    all_kept = !left_over && finished(request, found.cases);
  }
  for (const PlannedCase& planned : found.cases) {
    found.names.push_back(describe(request, planned));
    found.recorded.push_back(all_kept || kept.contains(planned.case_id));
  }
  return found;
}

RunOutcome run(const RunRequest& request) {
  const StopGuard guard(farewell(request));
  return Runner(request).run();
}

}  // namespace splash::experiments
