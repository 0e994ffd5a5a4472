#include "experiments/runner/definition.h"

#include <fstream>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "core/error.h"
#include "core/scratch_folder.h"
#include "experiments/runner/value.h"
#include "experiments/tests/toy_kind.h"

using namespace splash;
using namespace splash::experiments;
using tests::contains;
using tests::message_of;

namespace {

const std::string kHead = "title = 'T'\nkind = 'toy'\n";

Definition parse(const std::string& body) {
  return parse_definition(kHead + body, "t", "t.toml");
}

std::string listed(const std::vector<Parameters>& cases, const std::vector<std::string>& names) {
  std::string text;
  for (const Parameters& parameters : cases) {
    if (!text.empty()) text += ' ';
    for (const std::string& name : names)
      text += to_text(parameters.at(name)) + (name == names.back() ? "" : ",");
  }
  return text;
}

// The error message for a faulty definition.
std::string definition_fault(const std::string& body) {
  return message_of([&] {
    const Definition definition = parse(body);
    expand(definition, definition.full);
  });
}

}  // namespace

TEST_CASE("axes multiply in the order of the file, the last fastest") {
  const Definition d = parse("[axes]\nx = [1, 2.5]\nn = [3, 4]\n");
  CHECK(listed(expand(d, d.full), {"x", "n"}) == "1,3 1,4 2.5,3 2.5,4");
  const Definition turned = parse("[axes]\nn = [3, 4]\nx = [1, 2.5]\n");
  CHECK(listed(expand(turned, turned.full), {"x", "n"}) == "1,3 2.5,3 1,4 2.5,4");
  CHECK(case_count(turned.full) == 4);
}

TEST_CASE("zip steps together and is the slowest factor") {
  const Definition d = parse("[zip]\nx = [1, 2]\nmode = ['plain', 'signed']\n[axes]\nn = [3, 4]\n");
  CHECK(listed(expand(d, d.full), {"x", "mode", "n"}) == "1,plain,3 1,plain,4 2,signed,3 2,signed,4");
}

TEST_CASE("a value may stand for several, as the kind says") {
  const Definition d = parse("[axes]\nx = [1]\nn = [2, 99]\n");
  CHECK(listed(expand(d, d.full), {"n"}) == "2 3 4");
  CHECK(case_count(d.full) == 3);
}

TEST_CASE("a folder stands for every definition in it") {
  const ScratchFolder folder;
  std::ofstream(folder.file("b.toml")) << kHead;
  std::ofstream(folder.file("a.toml")) << kHead << "[fixed]\nn = 2\n";
  const auto all = find_definitions(folder.file(""), {});
  REQUIRE(all.size() == 2);
  CHECK(all[0].name == "a");
  CHECK(all[1].name == "b");
  CHECK(find_definitions("b", {folder.file("a.toml"), folder.file("b.toml")}).front().name == "b");
  CHECK(contains(message_of([&] { find_definitions("bb", {folder.file("b.toml")}); }), "did you mean 'b'?"));
  CHECK(contains(message_of([&] {
                   find_definitions("xyzzy", {"lab/a.toml", "lab/b.toml"});
                 }),
                 "allowed: a, b and lab"));
  const ScratchFolder empty;
  CHECK(contains(message_of([&] { find_definitions(empty.file(""), {}); }), "holds no *.toml"));
}

TEST_CASE("integers serve as numbers, defaults fill the rest") {
  const Definition d = parse("[fixed]\nx = 2\n");
  const auto cases = expand(d, d.full);
  REQUIRE(cases.size() == 1);
  CHECK(std::holds_alternative<double>(cases[0].at("x")));
  CHECK(get_integer(cases[0], "n") == 3);
  CHECK_FALSE(get_flag(cases[0], "strict"));
}

TEST_CASE("the quick profile overrides entries") {
  const Definition d = parse(
      "[fixed]\nmode = 'plain'\n[axes]\nx = [1, 2, 3]\nn = [1, 2]\n"
      "[quick.axes]\nx = [9]\nmode = ['plain', 'signed']\n[quick.fixed]\nn = 5\n");
  CHECK(case_count(d.full) == 6);
  CHECK(listed(expand(d, d.quick), {"x", "n", "mode"}) == "9,5,plain 9,5,signed");
  const Definition none = parse("[axes]\nx = [1, 2]\n");
  CHECK(case_count(none.quick) == 2);
}

TEST_CASE("what is wrong is said in one sentence with file, line and what is allowed") {
  CHECK(contains(definition_fault("[axis]\nx = [1]\n"), "t.toml:3: unknown key 'axis'"));
  CHECK(contains(definition_fault("[axis]\nx = [1]\n"), "did you mean 'axes'?"));
  CHECK(contains(definition_fault("[fixed]\nxx = 1\n"), "t.toml:4: kind 'toy' has no parameter 'xx'"));
  CHECK(contains(definition_fault("[fixed]\nn = 1.5\n"),
                 "must be a value of type integer, not the number 1.5"));
  CHECK(contains(definition_fault("[fixed]\nmode = 'singed'\n"), "did you mean 'signed'?"));
  CHECK(contains(definition_fault("[fixed]\nx = nan\n"), "must be finite"));
  CHECK(contains(definition_fault("[axes]\nx = []\n"), "is empty"));
  CHECK(contains(definition_fault("[axes]\nx = 1\n"), "must be a list"));
  CHECK(contains(definition_fault("[axes]\nx = [[1]]\n"), "one value of type number"));
  CHECK(contains(definition_fault("[zip]\nx = [1, 2]\nn = [1]\n"), "'x' has 2 values and 'n' has 1"));
  CHECK(contains(definition_fault("[fixed]\nx = 1\n[axes]\nx = [1]\n"), "set twice"));
  CHECK(contains(definition_fault("[axes]\nx = [1, 1.0]\n"), "two cases have the same parameters"));
  CHECK(contains(definition_fault("[fixed]\nn = -1\n"), "n is negative"));
  CHECK(contains(definition_fault("reproduce = 'yes'\n"), "'reproduce' must be true or false"));
  CHECK(contains(definition_fault("[fixed\n"), "t.toml:3: not valid TOML"));
  CHECK(contains(message_of([] { parse_definition("title = 'T'\nkind = 'toi'", "t", "t.toml"); }),
                 "t.toml:2: there is no kind of experiment 'toi'; did you mean 'toy'?"));
  CHECK(contains(message_of([] { parse_definition("title = 'T'", "t", "t.toml"); }), "lacks 'kind'"));
  CHECK(contains(message_of([] { read_definition("/nowhere/x.toml"); }), "cannot read"));
}

TEST_CASE("expectations") {
  const Definition d = parse(
      "[axes]\nn = [1, 2]\n"
      "[[expect]]\nclaim = 'S1'\ncolumn = 'y'\nwhere = { n = [1, 2], mode = 'plain' }\nstatistic = 'max'\n"
      "over = { where = { n = 1 } }\n"
      "[[expect]]\ncheck = 'small'\nbelow = 1e-3\ncolumn = 'y'\n");
  REQUIRE(d.expectations.size() == 2);
  CHECK(d.expectations[0].claim == "S1");
  CHECK(d.expectations[0].measured.where.at("n").size() == 2);
  CHECK(d.expectations[0].over->column == "y");
  CHECK(d.expectations[0].over->statistic == Statistic::max);
  CHECK(d.expectations[1].relation == Relation::below);
  CHECK(d.expectations[1].bound == 1e-3);

  CHECK(d.expectations[0].as == RatioAs::ratio);
  CHECK(parse("[[expect]]\nclaim = 'S1'\ncolumn = 'y'\nas = 'gain_percent'\nover = { where = { n = 1 } }\n")
            .expectations[0]
            .as == RatioAs::gain_percent);
  CHECK(contains(definition_fault("[[expect]]\nclaim = 'S1'\ncolumn = 'y'\nas = 'gain_percent'\n"),
                 "needs 'over'"));
  CHECK(contains(definition_fault("[[expect]]\nclaim = 'S1'\ncolumn = 'y'\nas = 'share'\n"),
                 "allowed: percent, gain_percent"));
  CHECK(
      contains(definition_fault("[[expect]]\nclaim = 'S1'\ncolumn = 'yy'\n"), "has no numeric column 'yy'"));
  CHECK(contains(definition_fault("[[expect]]\nclaim = 'S1'\ncolumn = 'label'\n"),
                 "has no numeric column 'label'"));
  CHECK(contains(definition_fault("[[expect]]\nclaim = 'S1'\ncolumn = 'y'\nstatistic = 'mode'\n"),
                 "unknown statistic"));
  CHECK(contains(definition_fault("[[expect]]\nclaim = 'S1'\ncolumn = 'y'\nwhere = { m = 1 }\n"),
                 "has no column 'm'"));
  CHECK(contains(definition_fault("[[expect]]\nclaim = 'S1'\ncolumn = 'y'\nwhere = { mode = 'x' }\n"),
                 "cannot be \"x\""));
  CHECK(contains(definition_fault("[[expect]]\ncolumn = 'y'\n"), "needs either 'claim'"));
  CHECK(contains(definition_fault("[[expect]]\ncheck = 'c'\ncolumn = 'y'\n"),
                 "needs one of 'below', 'above' and 'equal'"));
  CHECK(contains(definition_fault("[[expect]]\nclaim = 'S1'\ncolumn = 'y'\nwere = { n = 1 }\n"),
                 "did you mean 'where'?"));
}

TEST_CASE("--set replaces an axis in both profiles") {
  Definition d = parse("[axes]\nx = [1, 2]\nn = [1, 2]\n[quick.axes]\nx = [3, 4]\n");
  override_parameter(d, "x=7.5");
  CHECK(listed(expand(d, d.full), {"x", "n"}) == "7.5,1 7.5,2");
  CHECK(listed(expand(d, d.quick), {"x", "n"}) == "7.5,1 7.5,2");
  CHECK(contains(message_of([&] { override_parameter(d, "x"); }), "parameter=value"));
  CHECK(message_of([&] { override_parameter(d, "x=8"); }) ==
        "--set gives x twice, as 7.5 and 8; give all its values at once: --set 'x=7.5,8'");
  CHECK(contains(message_of([&] { override_parameter(d, "n=two"); }), "type integer"));
  CHECK(contains(message_of([&] { override_parameter(d, "strictt=true"); }), "did you mean 'strict'?"));
}

TEST_CASE("--set with several values makes an axis in both profiles") {
  Definition d = parse("[axes]\nx = [1, 2]\nn = [1, 2]\n[quick.axes]\nx = [3]\n");
  override_parameter(d, "x=7.5,8");
  override_parameter(d, R"(mode=["plain", "signed"])");
  CHECK(listed(expand(d, d.full), {"x", "n", "mode"}) ==
        "7.5,1,plain 7.5,1,signed 7.5,2,plain 7.5,2,signed 8,1,plain 8,1,signed 8,2,plain 8,2,signed");
  CHECK(case_count(d.quick) == 8);  // the axis keeps its place, a new one changes fastest
  CHECK(override_texts(d) == std::vector<std::string>{R"(mode=["plain","signed"])", "x=7.5,8"});
  CHECK(message_of([&] { override_parameter(d, "x=[9]"); }) ==
        "--set gives x twice, as 7.5,8 and 9; give all its values at once: --set 'x=7.5,8,9'");

  Definition zip = parse("[zip]\nx = [1, 2]\nn = [1, 2]\n");
  override_parameter(zip, "n=3,4,99");  // 99 stands for 3 and 4, as the kind says
  CHECK(contains(message_of([&] { expand(zip, zip.full); }), "two cases have the same parameters"));
  Definition apart = parse("[zip]\nx = [1, 2]\nn = [1, 2]\n");
  override_parameter(apart, "n=3,4");
  CHECK(listed(expand(apart, apart.full), {"x", "n"}) == "1,3 1,4 2,3 2,4");
}

TEST_CASE("values of the command line: commas part numbers, a text keeps them, TOML's lists hold either") {
  const ParameterInfo plan{"plan", ParameterType::text, std::string(), "", "", {}};
  const ParameterInfo alpha{"alpha", ParameterType::number, 1.5, "", "", {}};
  const ParameterInfo causal{"causal", ParameterType::flag, false, "", "", {}};
  const ParameterInfo solver{"solver", ParameterType::text, std::string("a"), "", "", {"a", "b"}};
  using Values = std::vector<Value>;
  CHECK(parsed_values(alpha, "1.2,1.3,2") == Values{1.2, 1.3, 2.0});
  CHECK(parsed_values(alpha, "[1.2, 2]") == Values{1.2, 2.0});
  CHECK(parsed_values(causal, "true,false") == Values{true, false});
  CHECK(parsed_values(plan, "schedule=learned,k_keep=64") ==
        Values{std::string("schedule=learned,k_keep=64")});
  CHECK(parsed_values(plan, R"(["a,b=1", "c d"])") == Values{std::string("a,b=1"), std::string("c d")});
  CHECK(parsed_values(plan, "") == Values{std::string()});
  for (const char* bad : {"[1.2", "[]", "[[1]]", "[1]\nmore = [2]", "[1] x"}) {
    CAPTURE(bad);
    CHECK(contains(message_of([&] { parsed_values(alpha, bad); }),
                   "a list in TOML's notation, alpha=[1.2, 1.5]"));
  }
  for (const char* bad : {"", ",", "1,", "1,,2", ",1"}) {
    CAPTURE(bad);
    CHECK(contains(message_of([&] { parsed_values(alpha, bad); }), "needs a value where"));
  }
  CHECK(contains(message_of([&] { parsed_values(alpha, "1;2"); }), "type number"));
  CHECK(contains(message_of([&] { parsed_values(solver, "a,b"); }),
                 R"(several texts are a list: 'solver=["a", "b"]')"));

  for (const Values& values : {Values{1e-30, 0.1}, Values{int64_t{-4}}, Values{std::string("a,b=1")},
                               Values{std::string("[a b] | cases: 2 \"\\'\n\x7f"), std::string("ü")},
                               Values{std::string("[")}, Values{std::string()}}) {
    const ParameterInfo info{"p", static_cast<ParameterType>(values.front().index()), values.front(), "", "",
                             {}};
    const std::string text = values_text(values);
    CAPTURE(text);
    CHECK(text.find(' ') == std::string::npos);
    CHECK(parsed_values(info, text) == values);
  }
}

TEST_CASE("expectations that --set excludes are dropped, the others stay") {
  const std::string body =
      "[axes]\nx = [1, 2]\nn = [1, 2]\n"
      "[[expect]]\nclaim = 'one'\ncolumn = 'y'\nwhere = { x = 1 }\n"
      "[[expect]]\nclaim = 'ratio'\ncolumn = 'y'\nwhere = { x = 2 }\nover = { where = { x = 1 } }\n"
      "[[expect]]\nclaim = 'any'\ncolumn = 'y'\nwhere = { n = 2 }\n";
  const auto left = [&](const char* assignment) {
    Definition d = parse(body);
    override_parameter(d, assignment);
    std::string names;
    for (const Expectation& expected : d.expectations) names += expected.claim + " ";
    return names;
  };
  CHECK(left("x=1") == "one any ");
  CHECK(left("x=2,3") == "any ");
  CHECK(left("x=1,2") == "one ratio any ");
  CHECK(left("n=1") == "one ratio ");
  CHECK(left("mode=signed") == "one ratio any ");
  CHECK(left(R"(mode=["plain", "signed"])") == "one ratio any ");
}

TEST_CASE("where --set sweeps what a definition holds, its expectations keep to the value") {
  const std::string body =
      "[axes]\nn = [1, 2]\n[fixed]\nx = 2.5\n"
      "[[expect]]\nclaim = 'one'\ncolumn = 'y'\nover = { where = { x = 7 } }\n";
  Definition d = parse(body);
  override_parameter(d, "x=2.5,7");
  CHECK(std::get<double>(d.expectations.at(0).measured.held.at("x").at(0)) == 2.5);
  CHECK(d.expectations.at(0).over->held.empty());  // it says itself which it is of
  Definition swept = parse(body);
  override_parameter(swept, "n=3,4");
  CHECK(swept.expectations.at(0).measured.held.empty());  // the definition sweeps n, too
  Definition elsewhere = parse(body);
  override_parameter(elsewhere, "x=7,8");
  CHECK(elsewhere.expectations.empty());
}

TEST_CASE("a definition made to exhaust is refused in one sentence") {
  std::string key = "a", quoted = "'='";
  for (int i = 0; i < 20000; ++i) key += ".a", quoted += ".\"#\\\"[\"";
  for (const std::string& deep :
       {key + " = 1\n", quoted + " = 1\n", "[" + key + "]\n", "# '\n" + key + " = 1\n"}) {
    CHECK(contains(definition_fault(deep), "a key of more than 16 dotted parts"));
  }
  for (const char begin : {'!', '\0', '\x7f', ',', '\x01'}) {  // first character of a key
    CAPTURE(begin);
    CHECK(contains(definition_fault(std::string("[") + begin + "a]\n"), "not valid TOML"));
    CHECK(contains(definition_fault(std::string("[[") + begin + "a]]\n"), "not valid TOML"));
  }
  CHECK(contains(definition_fault("# " + std::string(150, '.') + "\n" + std::string(300, 'x') + " = 1\n"),
                 "unknown key"));
  CHECK(contains(definition_fault(std::string(400, '[') + "\n"), "not valid TOML"));

  std::string numbers = "1";
  for (int i = 2; i <= 5000; ++i) numbers += fmt::format(",{}", i);
  const std::string axes = fmt::format("[axes]\nx = [{0}]\nn = [{0}]\n", numbers);
  CHECK(contains(definition_fault(axes), "t.toml: the lists of [axes] multiply to 25"));
  CHECK(contains(definition_fault(axes), "000 cases; at most 10000000 are run"));
}
