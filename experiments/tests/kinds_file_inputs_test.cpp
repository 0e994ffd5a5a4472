// Tensors from a user's files as inputs: which numbers reach which kind.

#include <cmath>
#include <filesystem>
#include <limits>
#include <set>

#include <doctest/doctest.h>

#include "analysis/tests/example_capture.h"
#include "core/error.h"
#include "cpu_ref/attention/forward.h"
#include "experiments/kinds/support/file_inputs.h"
#include "experiments/kinds/support/gpu_problem.h"
#include "experiments/runner/definition.h"
#include "experiments/tests/kinds_helpers.h"
#include "report/tests/example_report.h"

using namespace splash;
using namespace splash::experiments;
using namespace splash::experiments::tests;
using splash::analysis::testing::example_value;
using splash::analysis::testing::ExampleCapture;
using splash::analysis::testing::write_capture;

namespace {

struct CaptureFile {
  explicit CaptureFile(const ExampleCapture& example = {}) {
    write_capture(folder.file("heads.h5"), example);
    name = folder.file("heads.h5");
  }
  Parameters with(const Parameters& changes = {}) const { return tests::with({{"input", name}}, changes); }

  ScratchFolder folder;
  std::string name;
};

const Parameters kHead{{"layer", int64_t{7}}, {"head", int64_t{3}}, {"batch_entry", int64_t{1}}};

}  // namespace

TEST_CASE("a query head comes with the keys and values of its group") {
  const CaptureFile file;
  const auto in = load_inputs(parameters_of("workload", file.with(kHead)));
  CHECK(in->shape() == AttentionShape{.q_len = 12, .kv_len = 12, .head_dim = 4});
  CHECK(in->q.row(0, 0, 5)[2] == example_value("q", 0, {1, 1, 3, 5, 2}));
  CHECK(in->k.row(0, 0, 5)[2] == example_value("k", 0, {1, 1, 1, 5, 2}));  // heads 2 and 3 read key head 1
  CHECK(in->v.row(0, 0, 11)[0] == example_value("v", 0, {1, 1, 1, 11, 0}));
  const auto other = load_inputs(parameters_of("workload", file.with({{"head", int64_t{1}}})));
  CHECK(other->k.row(0, 0, 5)[2] == example_value("k", 0, {0, 0, 0, 5, 2}));  // layer 3 is the first one
}

TEST_CASE("scale, mask, extents and layer are the file's unless they are set") {
  const CaptureFile file;
  const Parameters p = parameters_of("workload", file.with());
  CHECK(get_integer(p, "layer") == 3);
  CHECK(get_integer(p, "length") == 12);
  CHECK(get_integer(p, "head_dim") == 4);
  CHECK(get_number(p, "scale") == 0.5);
  CHECK(get_flag(p, "causal"));
  const AttentionSpec spec = input_spec(p, *load_inputs(p));
  CHECK(spec.scale == 0.5);
  CHECK(spec.mask.causal);
  const Parameters changed =
      parameters_of("workload", file.with({{"scale", 2.0}, {"causal", false}, {"length", int64_t{5}}}));
  const auto cut = load_inputs(changed);
  CHECK(cut->q.length() == 5);
  CHECK(cut->k.row(0, 0, 4)[1] == example_value("k", 0, {0, 0, 0, 4, 1}));
  CHECK(input_spec(changed, *cut).scale == 2.0);
  CHECK(!input_spec(changed, *cut).mask.causal);
  CHECK(find_kind("workload").input_hash(changed) != find_kind("workload").input_hash(p));
  const Parameters usual = find_kind("workload").used(parameters_of("workload", file.with({{"scale", 0.0}})));
  CHECK(get_number(usual, "scale") == 0.5);  // 1/sqrt(4)
}

TEST_CASE("the attention of a captured head is what a sum over its numbers gives") {
  const CaptureFile file;
  const Parameters p =
      parameters_of("attention-map", file.with(tests::with(kHead, {{"tokens", int64_t{12}}})));
  const CaseResult result = find_kind("attention-map").evaluate(p);
  const auto& softmax = result.attachments.at(0).numbers;
  for (int64_t i = 0; i < 12; ++i) {
    std::vector<double> weights(12, 0);
    double sum = 0;
    for (int64_t j = 0; j <= i; ++j) {
      double score = 0;
      for (int64_t d = 0; d < 4; ++d)
        score += example_value("q", 0, {1, 1, 3, i, d}) * example_value("k", 0, {1, 1, 1, j, d});
      sum += weights[j] = std::exp(0.5 * score);
    }
    for (int64_t j = 0; j < 12; ++j) CHECK(softmax[i * 12 + j] == doctest::Approx(weights[j] / sum));
  }
}

TEST_CASE("the fingerprint follows the file's content") {
  const CaptureFile a, b({.scale = {0.25, 0.25}});
  const auto hash = [](const CaptureFile& file) { return open_tensor_file(file.name).hash; };
  CHECK(hash(a) != hash(b));
  CHECK(hash(a) == hash(CaptureFile()));
  const Parameters p = parameters_of("workload", a.with());
  CHECK(find_kind("workload").input_hash(p).find(hash(a)) != std::string::npos);
  const Parameters gpu = parameters_of("gpu-attention", a.with());
  CHECK(find_kind("gpu-attention").input_hash(gpu).find(hash(a)) != std::string::npos);
}

TEST_CASE("what a file does not hold is said in one sentence") {
  const CaptureFile file;
  const auto refused = [&](const Parameters& changes, const std::string& sentence) {
    CHECK_THROWS_WITH_AS(parameters_of("workload", file.with(changes)), sentence.c_str(), InvalidArgument);
  };
  refused({{"layer", int64_t{4}}}, "layer is 4; " + file.name + " holds the layers 3 and 7");
  refused({{"call", int64_t{1}}}, "call is 1; " + file.name + " holds one call, 0");
  refused({{"head", int64_t{4}}}, "head is 4; call 0 of " + file.name + " has the query heads 0 to 3");
  refused({{"batch_entry", int64_t{2}}},
          "batch_entry is 2; call 0 of " + file.name + " has the batch entries 0 to 1");
  refused({{"length", int64_t{13}}},
          "length is 13; call 0 of " + file.name + " holds 12 queries and 12 keys");
  refused({{"head_dim", int64_t{64}}}, "head_dim is 64; the heads of " + file.name + " have 4");
  CHECK_THROWS_WITH_AS(parameters_of("workload", {{"scale", 2.0}}),
                       "scale is 2; only with a file as input can it be set, others have 1/sqrt(head_dim)",
                       InvalidArgument);
  const std::string none = file.folder.file("none.npz");
  CHECK_THROWS_WITH_AS(parameters_of("workload", {{"input", none}}),
                       ("input is the file " + none + ", and there is none at " + none).c_str(),
                       InvalidArgument);
  Definition definition = parse_definition("title = 'T'\nkind = 'workload'\n", "t", "t.toml");
  CHECK_THROWS_WITH_AS(override_parameter(definition, "input=heads.csv"),
                       doctest::Contains("or a file that ends with .h5, .npz, .safetensors, .pt"),
                       InvalidArgument);
}

TEST_CASE("calls of a few last queries are taken whole") {
  const CaptureFile file(
      {.shape = {.batch = 1, .q_heads = 2, .kv_heads = 1, .q_len = 1, .kv_len = 9, .head_dim = 4}});
  const Parameters p = parameters_of("workload", file.with());
  CHECK(load_inputs(p)->shape() == AttentionShape{.q_len = 1, .kv_len = 9, .head_dim = 4});
  CHECK(find_kind("workload").evaluate(p).numbers.at("visible_pairs") == 9);
  CHECK_THROWS_WITH_AS(parameters_of("workload", file.with({{"length", int64_t{4}}})),
                       doctest::Contains("only calls of as many queries as keys are cut"), InvalidArgument);
  CHECK_THROWS_AS(parameters_of("attention-map", file.with()), InvalidArgument);
}

TEST_CASE("learned thresholds are judged on another call") {
  const CaptureFile file({.calls = 2});
  const Parameters changes = file.with({{"steps", int64_t{2}}, {"eval_call", int64_t{1}}});
  const Parameters p = parameters_of("learned-threshold", changes);
  const CaseResult across = find_kind("learned-threshold").evaluate(p);
  const CaseResult within = run_kind("learned-threshold", file.with({{"steps", int64_t{2}}}));
  CHECK(across.numbers.at("loss_before") != within.numbers.at("loss_before"));
  const Parameters used = find_kind("learned-threshold").used(p);
  CHECK(!used.contains("eval_text"));
  CHECK(get_integer(used, "eval_call") == 1);
  CHECK_THROWS_AS(parameters_of("learned-threshold", file.with({{"eval_call", int64_t{2}}})),
                  InvalidArgument);
}

TEST_CASE("a GPU's problem is a file's layers, a batch entry each, with grouped heads") {
  const CaptureFile file;
  const Parameters p = parameters_of("gpu-attention", file.with());
  const AttentionSpec spec = problem_spec(p);
  CHECK(spec.shape ==
        AttentionShape{.batch = 4, .q_heads = 4, .kv_heads = 2, .q_len = 12, .kv_len = 12, .head_dim = 4});
  CHECK(spec.scale == 0.5);
  CHECK(spec.mask.causal);
  const auto in = problem_inputs(p);
  CHECK(in->shape() == spec.shape);
  CHECK(in->k.row(3, 1, 7)[2] == static_cast<float>(example_value("k", 0, {1, 1, 1, 7, 2})));
  const Parameters one =
      parameters_of("gpu-attention", file.with({{"layer", int64_t{7}}, {"q_len", int64_t{6}}}));
  CHECK(problem_spec(one).shape.batch == 2);
  CHECK(problem_spec(one).shape.kv_len == 6);
  CHECK(problem_inputs(one)->q.row(1, 3, 5)[3] == static_cast<float>(example_value("q", 0, {1, 1, 3, 5, 3})));
  CHECK(problem_inputs(one)->q.length() == 6);
  CHECK_THROWS_WITH_AS(parameters_of("gpu-attention", file.with({{"q_heads", int64_t{8}}})),
                       ("call 0 of " + file.name +
                        " is B 4, H 4/2, N 12/12, d 4; the case asks for B 4, H 8/2, "
                        "N 12/12, d 4")
                           .c_str(),
                       InvalidArgument);
  CHECK_THROWS_AS(parameters_of("gpu-attention", file.with({{"layer", int64_t{1}}})), InvalidArgument);
  const Parameters used = find_kind("gpu-attention").used(one);
  CHECK(get_integer(used, "layer") == 7);
  CHECK(!used.contains("query_variance"));
}

TEST_CASE("a GPU's problem is all calls of a file, a batch entry each") {
  const CaptureFile file({.calls = 3});
  const Parameters p = parameters_of("gpu-attention", file.with({{"call", int64_t{-1}}}));
  CHECK(problem_spec(p).shape.batch == 12);
  CHECK(problem_spec(p).mask.causal);
  const auto in = problem_inputs(p);
  CHECK(in->shape() == problem_spec(p).shape);
  CHECK(in->k.row(11, 1, 7)[2] == static_cast<float>(example_value("k", 2, {1, 1, 1, 7, 2})));
  CHECK(in->q.row(4, 3, 5)[1] == static_cast<float>(example_value("q", 1, {0, 0, 3, 5, 1})));
  const Parameters layer = parameters_of(
      "gpu-attention", file.with({{"call", int64_t{-1}}, {"layer", int64_t{7}}, {"q_len", int64_t{6}}}));
  CHECK(problem_inputs(layer)->v.batch() == 6);
  CHECK(problem_inputs(layer)->v.row(5, 1, 5)[3] ==
        static_cast<float>(example_value("v", 2, {1, 1, 1, 5, 3})));
  CHECK(problem_key(layer) !=
        problem_key(parameters_of("gpu-attention", file.with({{"layer", int64_t{7}}}))));
  CHECK_THROWS_WITH_AS(
      parameters_of("gpu-attention", file.with({{"call", int64_t{-1}}, {"batch", int64_t{4}}})),
      ("all calls of " + file.name +
       " are B 12, H 4/2, N 12/12, d 4; the case asks for B 4, H 4/2, N 12/12, d 4")
          .c_str(),
      InvalidArgument);
  CHECK_THROWS_AS(parameters_of("gpu-attention", file.with({{"call", int64_t{-2}}})), InvalidArgument);
  const CaptureFile mixed({.calls = 2, .full_call = 1});
  CHECK_THROWS_WITH_AS(
      parameters_of("gpu-attention", mixed.with({{"call", int64_t{-1}}})),
      ("the calls 0 and 1 of " + mixed.name + " differ in extents or mask; set call").c_str(),
      InvalidArgument);
}

TEST_CASE("a GPU's oracle groups the heads of a file as the CPU's kinds do") {
  const CaptureFile file;
  const Parameters p = parameters_of(
      "gpu-attention", file.with({{"normalizer", std::string("entmax")}, {"dtype", std::string("float32")}}));
  const auto in = problem_inputs(p)->cast<double>();
  const auto whole = cpu_ref::attention_forward<double>(problem_spec(p), in.q, in.k, in.v);
  const Parameters head = parameters_of("attention-accuracy", file.with(kHead));
  AttentionSpec spec = input_spec(head, *load_inputs(head));
  spec.normalizer = {NormalizerKind::entmax, {1.5}};
  const auto& one = *load_inputs(head);
  const auto alone = cpu_ref::attention_forward<double>(spec, one.q, one.k, one.v);
  for (int64_t i = 0; i < 12; ++i) {
    for (int64_t d = 0; d < 4; ++d)
      CHECK(whole.out.row(3, 3, i)[d] == doctest::Approx(alone.out.row(0, 0, i)[d]).epsilon(1e-12));
  }
}

TEST_CASE("the CPU's speed is measured on a layer with all its heads, and its own scale and mask") {
  const CaptureFile file;
  const Parameters layer{{"layer", int64_t{7}}, {"batch_entry", int64_t{1}}, {"samples", int64_t{2}}};
  double support = 0, heads = 0;
  for (int64_t head = 0; head < 4; ++head, ++heads) {
    const Parameters one = parameters_of("workload", file.with(tests::with(kHead, {{"head", head}})));
    AttentionSpec spec = input_spec(one, *load_inputs(one));
    spec.normalizer = {NormalizerKind::entmax, {1.5}};
    const auto& in = *load_inputs(one);
    for (const int64_t keys : cpu_ref::attention_forward<double>(spec, in.q, in.k, in.v).support)
      support += static_cast<double>(keys) / 48;
  }
  for (const char* implementation : {"screened", "reference"}) {
    const CaseResult found = run_kind(
        "attention-speed", file.with(tests::with(layer, {{"implementation", std::string(implementation)},
                                                         {"pass", std::string("forward+backward")}})));
    CHECK(found.numbers.at("support_mean") == doctest::Approx(support));
    CHECK(found.numbers.at("nmse") < 1e-12);
    CHECK(found.numbers.at("dense_equivalent_flops") == (4 + 10) * 4 * 78 * heads);
  }
  const Parameters p = parameters_of("attention-speed", file.with(layer));
  CHECK(get_integer(p, "n") == 12);
  const Parameters used = find_kind("attention-speed").used(p);
  CHECK(get_integer(used, "kv_heads") == 2);
  CHECK(!used.contains("query_variance"));
  CHECK(find_kind("attention-speed").input_hash(p).find(open_tensor_file(file.name).hash) !=
        std::string::npos);
  const auto refused = [&](const Parameters& changes, const std::string& sentence) {
    CHECK_THROWS_WITH_AS(parameters_of("attention-speed", file.with(changes)), sentence.c_str(),
                         InvalidArgument);
  };
  refused({{"heads", int64_t{2}}}, "heads is 2; a layer of " + file.name + " has 4");
  refused({{"kv_heads", int64_t{4}}}, "kv_heads is 4; a layer of " + file.name + " has 2");
  refused({{"n", int64_t{13}}}, "n is 13; call 0 of " + file.name + " holds 12 queries and 12 keys");
  refused({{"layer", int64_t{4}}}, "layer is 4; " + file.name + " holds the layers 3 and 7");
  CHECK_THROWS_WITH_AS(parameters_of("attention-speed", {{"scale", 2.0}}),
                       "scale is 2; only with a file as input can it be set, others have 1/sqrt(head_dim)",
                       InvalidArgument);
}

TEST_CASE("rows of scores are a head's last queries over its keys") {
  const CaptureFile file;
  const Parameters all = parameters_of("gpu-entmax-rows", file.with(kHead));
  CHECK(get_integer(all, "rows") == 12);
  CHECK(get_integer(all, "n") == 12);
  const Parameters p =
      parameters_of("gpu-entmax-rows", file.with(tests::with(kHead, {{"rows", int64_t{3}}, {"scale", 2.0}})));
  const Tensor<float> scores = load_file_scores(p);
  CHECK(scores.length() == 3);
  CHECK(scores.dim() == 12);
  for (int64_t r = 0; r < 3; ++r) {
    for (int64_t j = 0; j < 12; ++j) {
      double score = 0;
      for (int64_t d = 0; d < 4; ++d)
        score += example_value("q", 0, {1, 1, 3, 9 + r, d}) * example_value("k", 0, {1, 1, 1, j, d});
      if (j <= 9 + r) {
        CHECK(scores.row(0, 0, r)[j] == doctest::Approx(2 * score));
      } else {
        CHECK(scores.row(0, 0, r)[j] == -std::numeric_limits<float>::infinity());
      }
    }
  }
  const Tensor<float> open = load_file_scores(tests::with(p, {{"causal", false}, {"n", int64_t{5}}}));
  CHECK(open.dim() == 5);
  CHECK(open.row(0, 0, 0)[4] == doctest::Approx(2 * [] {
          double score = 0;
          for (int64_t d = 0; d < 4; ++d)
            score += example_value("q", 0, {1, 1, 3, 2, d}) * example_value("k", 0, {1, 1, 1, 4, d});
          return score;
        }()));
  const Kind& kind = find_kind("gpu-entmax-rows");
  CHECK(!kind.used(p).contains("variance"));
  CHECK(!kind.used(parameters_of("gpu-entmax-rows", {})).contains("input"));
  std::set<std::string> hashes;
  for (const Parameters& changes : {Parameters{}, Parameters{{"causal", false}}, Parameters{{"scale", 1.0}},
                                    Parameters{{"rows", int64_t{4}}}, Parameters{{"n", int64_t{5}}}})
    hashes.insert(kind.input_hash(parameters_of("gpu-entmax-rows", file.with(changes))));
  CHECK(hashes.size() == 5);
  const auto refused = [&](const Parameters& changes, const std::string& sentence) {
    CHECK_THROWS_WITH_AS(parameters_of("gpu-entmax-rows", file.with(changes)), sentence.c_str(),
                         InvalidArgument);
  };
  refused({{"rows", int64_t{13}}}, "rows is 13; " + file.name + " gives 12 queries a head");
  refused({{"rows", int64_t{6}}, {"n", int64_t{5}}}, "rows is 6; " + file.name + " gives 5 queries a head");
  refused({{"head", int64_t{4}}}, "head is 4; call 0 of " + file.name + " has the query heads 0 to 3");
  refused({{"n", int64_t{13}}}, "n is 13; call 0 of " + file.name + " holds 12 queries and 12 keys");
}

TEST_CASE("heads of a converted model have the alpha and the factor that their file tells") {
  const std::string method =
      R"({"schema": "splash attention method 1", "default": {"kind": "softmax"}, "layers": {"3":)"
      R"({"kind": "entmax", "alpha": [1.25, 1.5, 1.75, 2], "factor": [0.3, 0.7, 1, 0.5], "k_keep": 2}}})";
  const CaptureFile file({.method = method}), plain;
  const Parameters changes{{"implementation", std::string("torch-splash")},
                           {"alpha_of_file", true},
                           {"layer", int64_t{3}},
                           {"normalizer", std::string("entmax")},
                           {"dtype", std::string("float16")},
                           {"alpha", 1.3}};
  const auto problem = [&](const Parameters& more) {
    return parameters_of("gpu-attention", file.with(tests::with(changes, more)));
  };
  const Parameters p = problem({});
  const AttentionSpec spec = problem_spec(p);
  CHECK(spec.normalizer.alpha == std::vector<double>{1.25, 1.5, 1.75, 2});
  CHECK(spec.selection.kind == SelectionKind::all);  // k_keep of the method is not taken
  CHECK(spec.scale == 0.5);
  const auto scaled = problem_inputs(p), whole = problem_inputs(problem({{"alpha_of_file", false}}));
  for (const int64_t head : {0, 1, 2, 3}) {
    const float factor = std::vector{0.3f, 0.7f, 1.0f, 0.5f}[static_cast<size_t>(head)];
    for (int64_t i = 0; i < 12; ++i)
      for (int64_t d = 0; d < 4; ++d)
        CHECK(scaled->q.row(1, head, i)[d] ==
              factor * static_cast<float>(round_to(Dtype::f16, whole->q.row(1, head, i)[d])));
    CHECK(scaled->k.matrix(1, head / 2) == whole->k.matrix(1, head / 2));
    CHECK(scaled->v.matrix(1, head / 2) == whole->v.matrix(1, head / 2));
  }
  const auto in_float32 = problem_inputs(problem({{"dtype", std::string("float32")}}));
  CHECK(in_float32->q.row(0, 1, 5)[2] == 0.7f * whole->q.row(0, 1, 5)[2]);

  const Kind& kind = find_kind("gpu-attention");
  const Parameters used = kind.used(p);
  CHECK(get_flag(used, "alpha_of_file"));
  CHECK(!used.contains("alpha"));
  CHECK(kind.input_hash(p) == kind.input_hash(problem({{"alpha", 1.7}})));
  const Parameters without = problem({{"alpha_of_file", false}});
  CHECK(kind.input_hash(p) != kind.input_hash(without));
  CHECK(!kind.used(without).contains("alpha_of_file"));
  CHECK(get_number(kind.used(without), "alpha") == 1.3);
  CHECK(problem_key(without).find("alpha_of_file") == std::string::npos);
  CHECK(problem_spec(without).normalizer.alpha == std::vector<double>{1.3});
  // PyTorch's dense attention gets the same queries, which the report says.
  const Parameters dense = kind.used(problem({{"implementation", std::string("torch-cudnn")}}));
  CHECK(get_flag(dense, "alpha_of_file"));
  CHECK(get_text(dense, "normalizer") == "softmax");

  const auto refused = [&](const CaptureFile& held, const Parameters& more, const std::string& sentence) {
    CHECK_THROWS_WITH_AS(parameters_of("gpu-attention", held.with(tests::with(changes, more))),
                         sentence.c_str(), InvalidArgument);
  };
  refused(file, {{"layer", int64_t{-1}}},
          "alpha_of_file takes one layer at a time, for each has its own; set layer");
  refused(file, {{"normalizer", std::string("softmax")}},
          "alpha_of_file is of entmax; the normalizer is softmax");
  refused(file, {{"layer", int64_t{7}}},
          "alpha_of_file is of entmax; the method of " + file.name + " has softmax in layer 7");
  refused(file, {{"layer", int64_t{4}}}, "layer is 4; " + file.name + " holds the layers 3 and 7");
  refused(plain, {},
          "alpha_of_file takes a file with the attribute method, as of a converted model; " + plain.name +
              " has none");
  CHECK_THROWS_WITH_AS(parameters_of("gpu-attention", {{"alpha_of_file", true}}),
                       "alpha_of_file takes a file as input, not gaussian", InvalidArgument);
  const CaptureFile hostile({.method = "{"});
  CHECK_THROWS_WITH_AS(parameters_of("gpu-attention", hostile.with(changes)),
                       (hostile.name + ": the attribute method: it is not JSON").c_str(), ReportError);
  CHECK_NOTHROW(parameters_of("gpu-attention", hostile.with()));  // another program's method
}

TEST_CASE("layers of several scales need one to be named") {
  const CaptureFile file({.scale = {0.5, 0.25}});
  CHECK_THROWS_WITH_AS(
      parameters_of("gpu-attention", file.with()),
      ("the layers of " + file.name + " have scales from 0.5 on to 0.25; set layer, or scale").c_str(),
      InvalidArgument);
  CHECK(problem_spec(parameters_of("gpu-attention", file.with({{"layer", int64_t{7}}}))).scale == 0.25);
  CHECK(problem_spec(parameters_of("gpu-attention", file.with({{"scale", 1.0}}))).scale == 1.0);
}

TEST_CASE("without Python the conversion says what to run") {
  const ScratchFolder folder;
  const std::string path = folder.file("heads.npz");
  std::ofstream(path) << "x";
  setenv("SPLASH_PEER_PYTHON", "no-such-python", 1);
  CHECK_THROWS_WITH_AS(
      parameters_of("workload", {{"input", path}}),
      (path +
       " cannot be converted: no-such-python: not found (set SPLASH_PEER_PYTHON to a Python that has "
       "numpy and h5py); or run `python -m splash_attention.captures " +
       path + " OUT.h5` elsewhere and give OUT.h5")
          .c_str(),
      InvalidArgument);
  unsetenv("SPLASH_PEER_PYTHON");
}
