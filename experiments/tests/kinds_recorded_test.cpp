// Tests for every kind and every parameter that a report records what a case used: an absent parameter has no
// effect on the case, and a recorded one has an effect.

#include <bit>
#include <limits>
#include <optional>
#include <set>

#include <doctest/doctest.h>

#include "core/error.h"
#include "experiments/kinds/support/gpu_problem.h"
#include "experiments/kinds/support/planned_kernel.h"
#include "experiments/runner/plan.h"
#include "experiments/runner/recorded.h"
#include "experiments/runner/value.h"
#include "experiments/tests/kinds_helpers.h"
#include "report/io.h"

using namespace splash;
using namespace splash::experiments;
using namespace splash::experiments::tests;

TEST_CASE("the support that is drawn for a Gaussian problem is what its recorded case stored") {
  const report::Report report = report::read_report(SPLASH_SOURCE_DIR "/data/reports/flagship-h200.h5");
  int compared = 0;
  for (const analysis::KernelCase& kernel : analysis::kernel_cases(report)) {
    const double drawn = sampled_support(parameters_of(report, kernel.row));
    if (report.find("input")->texts[static_cast<std::size_t>(kernel.row)] != "gaussian" ||
        std::isnan(kernel.support))
      continue;
    CAPTURE(kernel.problem);
    CHECK(drawn == doctest::Approx(kernel.support).epsilon(0.25));
    ++compared;
  }
  CHECK(compared == 6);
}

namespace {

std::string text(const char* letters) {
  return letters;
}

// Everything that a case found, by name. Of times only their number counts.
using Found = std::map<std::string, std::vector<double>>;

Found evaluated(const Kind& kind, const Parameters& p) {
  const CaseResult result = kind.evaluate(p);
  Found found;
  const auto add = [&](const std::string& name, const std::vector<double>& values) { found[name] = values; };
  for (const auto& [name, value] : result.numbers) {
    if (name.find("time") == std::string::npos && name.find("rate") == std::string::npos &&
        name != "peak_memory_bytes")
      add(name, {value});
  }
  for (const auto& [name, values] : result.vectors)
    add(name, name == "time" ? std::vector{static_cast<double>(values.size())} : values);
  for (const auto& attachment : result.attachments) add(attachment.name, attachment.numbers);
  return found;
}

// The inputs of a GPU case, and the oracle's result on them.
Found on_gpu(const Kind& kind, const Parameters& p) {
  Parameters computed = p;
  for (const auto& [name, value] : kind.used(p)) computed[name] = value;
  const AttentionSpec spec = problem_spec(computed);
  const auto inputs = problem_inputs(computed);
  const CheckedRows checked = checked_rows(spec, get_integer(p, "checked_rows"));
  const auto rounded = [&](const Tensor<float>& tensor) {  // what the oracle looks at: the last batch entry
    Tensor<double> last = checked.last_batch(tensor.cast<double>());
    for (int64_t i = 0; i < last.size(); ++i)
      last.data()[i] = round_to(problem_dtype(computed), last.data()[i]);
    return last;
  };
  const auto q = rounded(inputs->q), k = rounded(inputs->k), v = rounded(inputs->v);
  const auto values = [](const Tensor<double>& tensor) {
    return std::vector(tensor.data(), tensor.data() + tensor.size());
  };
  Found found{{"out", values(oracle(checked, q, k, v).out)}, {"q", values(q)}};
  if (get_text(p, "pass") == "forward_backward")
    found["d_q"] = values(oracle_d_q(checked, q, k, v, problem_d_out(computed)->cast<double>()));
  return found;
}

bool equal(const Found& a, const Found& b) {
  return std::ranges::equal(a, b, [](const auto& x, const auto& y) {
    return x.first == y.first && std::ranges::equal(x.second, y.second, [](double u, double w) {
             return std::bit_cast<uint64_t>(u) == std::bit_cast<uint64_t>(w);
           });
  });
}

// Other values of a parameter; some may not be allowed.
std::vector<Value> others(const ParameterInfo& info, const Value& value) {
  std::vector<Value> list;
  for (const std::string& allowed : info.allowed) list.emplace_back(allowed);
  if (const auto* integer = std::get_if<int64_t>(&value)) {
    for (const int64_t step : {1, -1, 8}) list.emplace_back(*integer + step);
  } else if (const auto* flag = std::get_if<bool>(&value)) {
    list.emplace_back(!*flag);
  } else if (const auto* number = std::get_if<double>(&value)) {
    for (const double other : {*number * 1.25, *number * 0.75, *number + 0.05}) list.emplace_back(other);
  }
  std::erase(list, value);
  std::erase_if(list, [](const Value& other) {  // drop PyTorch's, which run in a process of their own
    const auto* name = std::get_if<std::string>(&other);
    return name != nullptr && name->starts_with("torch");
  });
  return list;
}

struct Example {
  const char* kind;
  Parameters changes;
  std::set<std::string> absent;     // exactly these
  std::set<std::string> of_time{};  // recorded parameters that change only times
};

// Whether another value of the parameter changes what the case finds. Empty if there is no other value: the
// kind refuses them all, or records the same as before (such as a capture's length).
std::optional<bool> has_effect(const Kind& kind, const Parameters& p, const ParameterInfo& info,
                               const Found& before, const auto& find) {
  std::optional<bool> effect;
  const Parameters used = kind.used(p);
  for (const Value& other : others(info, p.at(info.name))) {
    Parameters changed = p;
    changed[info.name] = other;
    try {
      kind.check(changed);
    } catch (const InvalidArgument&) {
      continue;
    }
    const Parameters now = kind.used(changed);
    if (used.contains(info.name) && now.contains(info.name) && now.at(info.name) == used.at(info.name))
      continue;
    effect = !equal(before, find(kind, changed));
    if (*effect) break;
  }
  return effect;
}

void check(const Example& example, const auto& find) {
  const Kind& kind = find_kind(example.kind);
  Parameters p = parameters_of(example.kind, example.changes);
  const Parameters used = kind.used(p);
  for (const auto& [name, value] : used) p.at(name) = value;
  CHECK(kind.used(p) == used);
  const Found before = find(kind, p);
  for (const ParameterInfo& info : kind.parameters()) {
    CAPTURE(example.kind);
    CAPTURE(info.name);
    CAPTURE(to_text(p.at(info.name)));
    CHECK(used.contains(info.name) == !example.absent.contains(info.name));
    if (example.of_time.contains(info.name)) continue;
    if (const auto effect = has_effect(kind, p, info, before, find))
      CHECK(*effect == used.contains(info.name));
  }
}

// kOfCapture: absent if inputs are drawn. kOfDraw: absent if they are MiniLM's.
const std::set<std::string> kOfCapture{"text", "layer", "head", "call", "batch_entry", "scale"},
    kOfDraw{"seed", "query_variance", "call", "batch_entry", "scale"};

std::set<std::string> joined(std::set<std::string> a, const std::set<std::string>& b) {
  a.insert(b.begin(), b.end());
  return a;
}

// MiniLM's head 4 in layer 1, with small draws.
const Parameters kCaptured{{"input", text("minilm")}, {"layer", int64_t{1}}, {"head", int64_t{4}}};

Parameters drawn(const char* input) {
  return {{"input", text(input)}, {"length", int64_t{70}}, {"head_dim", int64_t{8}}};
}

// of_time for GPU cases: what is timed and how.
const std::set<std::string> kOfKernel{"implementation", "method", "cache", "samples"};

Parameters gpu_problem(const Parameters& changes) {
  return with({{"implementation", text("torch-adasplash")},
               {"normalizer", text("entmax")},
               {"dtype", text("float32")},
               {"batch", int64_t{2}},
               {"q_heads", int64_t{2}},
               {"kv_heads", int64_t{2}},
               {"q_len", int64_t{64}},
               {"kv_len", int64_t{64}},
               {"head_dim", int64_t{8}},
               {"block", int64_t{16}},
               {"k_keep", int64_t{3}},
               {"checked_rows", int64_t{16}}},
              changes);
}

}  // namespace

TEST_CASE("a case of each kind records the parameters that have an effect on it, and no others") {
  const auto sinks = std::set<std::string>{"query_variance"};
  for (const Example& example : {
           Example{"attention-accuracy", kCaptured, joined(kOfDraw, {"block"})},
           Example{"attention-accuracy",
                   with(drawn("gaussian"),
                        {{"scope", text("block")}, {"block", int64_t{16}}, {"k_keep", int64_t{1}}}),
                   kOfCapture},
           Example{"attention-accuracy", with(drawn("gaussian"), {{"scope", text("all")}}),
                   joined(kOfCapture, {"block"})},
           Example{"attention-map", with(kCaptured, {{"tokens", int64_t{24}}}), kOfDraw},
           Example{"attention-map", drawn("local"), kOfCapture},
           Example{"gradient", with(drawn("clustered"), {{"k_keep", int64_t{3}}}),
                   joined(kOfCapture, {"block"})},
           Example{"gradient",
                   with(drawn("gaussian"),
                        {{"scope", text("block")}, {"block", int64_t{16}}, {"k_keep", int64_t{2}}}),
                   kOfCapture},
           Example{"learned-threshold", with(kCaptured, {{"steps", int64_t{1}}}),
                   joined(kOfDraw, {"eval_call"})},
           Example{"power-approximation", drawn("gaussian"), kOfCapture},
           Example{"tile-bounds", with(drawn("gaussian"), {{"length", int64_t{200}}}), kOfCapture},
           Example{"power-approximation", drawn("sink"), joined(kOfCapture, sinks)},
           Example{"workload", kCaptured, kOfDraw},
           Example{"workload", drawn("ties"), joined(kOfCapture, sinks)},
       })
    check(example, evaluated);
}

TEST_CASE("solvers record what they and their rows take") {
  const Parameters small{{"n", int64_t{200}}, {"rows", int64_t{3}}, {"samples", int64_t{2}}};
  const std::set<std::string> of_file{"input", "layer",  "head",     "call",  "batch_entry",
                                      "scale", "length", "head_dim", "causal"},
      gaussian = joined(of_file, {"gap", "spread", "histogram_bins"});
  for (const Example& example : {
           Example{"entmax-solver", with(small, {{"solver", text("bisection")}}), gaussian},
           Example{"entmax-solver", with(small, {{"solver", text("sorting")}}),
                   joined(gaussian, {"tolerance", "max_iterations"})},
           Example{"entmax-solver", with(small, {{"workload", text("sink")}, {"solver", text("histogram")}}),
                   joined(of_file, {"query_variance"})},
           Example{"entmax-solver", with(small, {{"workload", text("clustered")}}),
                   joined(of_file, {"gap", "histogram_bins"})},
       })
    check(example, evaluated);
}

TEST_CASE("a CPU's speed records all it is told") {
  check({"attention-speed",
         {{"n", int64_t{48}}, {"heads", int64_t{2}}, {"head_dim", int64_t{8}}, {"samples", int64_t{2}}},
         {"input", "kv_heads", "layer", "call", "batch_entry", "scale"},
         {"threads"}},
        evaluated);
}

TEST_CASE("GPU cases record the problem that their implementation computes") {
  const Parameters captured{{"input", text("gpl-3")},  {"batch", int64_t{6}},        {"q_heads", int64_t{12}},
                            {"kv_heads", int64_t{12}}, {"q_len", int64_t{512}},      {"kv_len", int64_t{512}},
                            {"head_dim", int64_t{32}}, {"checked_rows", int64_t{16}}};
  const Parameters converted{{"input", text("smollm2-converted")},
                             {"layer", int64_t{0}},
                             {"batch", int64_t{1}},
                             {"q_heads", int64_t{3}},
                             {"kv_heads", int64_t{1}},
                             {"q_len", int64_t{384}},
                             {"kv_len", int64_t{2048}},
                             {"head_dim", int64_t{64}},
                             {"scale", 0.125},
                             {"mask", text("causal")},
                             {"dtype", text("bfloat16")},
                             {"alpha_of_file", true},
                             {"checked_rows", int64_t{4}}};
  const std::set<std::string> of_others{"call",   "layer",    "scale", "alpha_of_file",  // file
                                        "window", "documents"},                          // masks
      all = joined(of_others, {"k_keep", "block", "share"});
  std::set<std::string> of_window = all, of_documents = all;
  of_window.erase("window");
  of_documents.erase("documents");
  for (const Example& example : {
           Example{"gpu-attention", gpu_problem({}), all, kOfKernel},
           Example{"gpu-attention", gpu_problem({{"mask", text("window")}, {"window", int64_t{5}}}),
                   of_window, kOfKernel},
           Example{"gpu-attention", gpu_problem({{"mask", text("documents")}, {"documents", text("60+4")}}),
                   of_documents, kOfKernel},
           Example{"gpu-attention", gpu_problem({{"normalizer", text("softmax")}}), joined(all, {"alpha"}),
                   kOfKernel},
           Example{"gpu-attention", gpu_problem({{"checked_rows", int64_t{1000}}}), all, kOfKernel},
           Example{"gpu-attention", gpu_problem({{"selection", text("top_k_block")}}),
                   joined(of_others, {"share"}), kOfKernel},
           Example{"gpu-attention", gpu_problem({{"selection", text("top_k_row")}}),
                   joined(of_others, {"share", "block"}), kOfKernel},
           Example{"gpu-attention", gpu_problem({{"selection", text("shared_keys")}, {"share", 0.5}}),
                   joined(of_others, {"k_keep"}), kOfKernel},
           Example{"gpu-attention", gpu_problem(captured), joined(all, {"seed", "query_variance"}),
                   kOfKernel},
           Example{"gpu-attention", gpu_problem(with(captured, {{"pass", text("forward_backward")}})),
                   joined(all, {"query_variance"}), kOfKernel},
           Example{"gpu-attention",
                   gpu_problem(converted),
                   {"alpha", "query_variance", "seed", "window", "documents", "k_keep", "block", "share"},
                   joined(kOfKernel, {"call"})},  // the file has one call, so -1 is the same
       })
    check(example, on_gpu);
}

TEST_CASE("a report older than the parameters of a mask has their defaults") {
  report::Report report = report::read_report(SPLASH_SOURCE_DIR "/data/reports/flagship-h200.h5");
  std::erase_if(report.results, [](const auto& column) { return is_of_one_mask(column.info.name); });
  const Parameters p = experiments::parameters_of(report, 0);
  CHECK(get_integer(p, "window") == 1024);
  CHECK(get_text(p, "documents") == "2x256");
}

TEST_CASE("what is counted of a report's kernels knows that a file's heads have alphas of their own") {
  report::Report report = report::read_report(SPLASH_SOURCE_DIR "/data/reports/flagship-h200.h5");
  const double before = get_number(experiments::parameters_of(report, 0), "alpha");
  CHECK(before == 1.5);
  for (const double of_file : {1.0, 0.0}) {
    report::Column column{.info = {.name = "alpha_of_file", .units = "1", .long_name = "", .formula = ""}};
    column.numbers.assign(static_cast<std::size_t>(report.cases()), of_file);
    std::erase_if(report.results, [](const auto& old) { return old.info.name == "alpha_of_file"; });
    report.results.push_back(column);
    CHECK((get_number(experiments::parameters_of(report, 0), "alpha") == 1.5) == (of_file == 0));
  }
}

TEST_CASE("PyTorch's attention is recorded as the dense softmax that it is") {
  const Kind& kind = find_kind("gpu-attention");
  const Parameters asked = parameters_of(
      "gpu-attention",
      gpu_problem({{"implementation", text("torch-cudnn")}, {"selection", text("top_k_block")}}));
  const Parameters used = kind.used(asked);
  CHECK(get_text(used, "normalizer") == "softmax");
  CHECK(get_text(used, "selection") == "all");
  for (const char* name : {"alpha", "k_keep", "block", "share"}) CHECK(!used.contains(name));
  const Parameters rows = parameters_of("gpu-entmax-rows", {{"rows", int64_t{20}}});
  CHECK(get_integer(find_kind("gpu-entmax-rows").used(rows), "checked_rows") == 20);
}

TEST_CASE("a table records the data's extents, and says why a parameter is missing") {
  const Definition captured =
      parse_definition("title = \"t\"\nkind = \"workload\"\n[fixed]\ninput = \"minilm\"\nlength = 1024\n",
                       "captured", "a.toml");
  const Definition gaussian = parse_definition(
      "title = \"t\"\nkind = \"workload\"\n[fixed]\ninput = \"gaussian\"\nlength = 40\n", "drawn", "b.toml");
  const std::vector<Definition> definitions{captured, gaussian};
  const auto cases = plan(definitions, false);
  report::Report report;
  report.results = make_table(definitions, cases, std::vector<CaseResult>(cases.size()));
  CHECK(report.find("length")->numbers == std::vector<double>{512, 40});
  CHECK(report.find("head_dim")->numbers == std::vector<double>{32, 64});
  CHECK(std::isnan(report.find("query_variance")->numbers[0]));
  CHECK(report.find("query_variance")->info.missing_reason == kWithoutEffect);
  CHECK(report.find("text")->texts == std::vector<std::string>{"gpl-3", ""});
  CHECK(recorded_parameters(report, 0, find_kind("workload").parameters(), "workload").at("seed") ==
        Value(int64_t{1}));
  for (const double wrong : {0.5, 1e30, -1e19, std::numeric_limits<double>::infinity()}) {
    for (report::Column& column : report.results)
      if (column.info.name == "seed") column.numbers[1] = wrong;
    CHECK_THROWS_WITH_AS(recorded_parameters(report, 1, find_kind("workload").parameters(), "workload"),
                         doctest::Contains("it must be an integer of at most 2^53"), ReportError);
    CHECK_NOTHROW(recorded_parameters(report, 0, find_kind("workload").parameters(), "workload"));
  }
}
