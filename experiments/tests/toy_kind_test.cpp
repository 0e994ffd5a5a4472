// The toy kind itself. The file is named _test so that only the test program links it.

#include "experiments/tests/toy_kind.h"

#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "core/error.h"
#include "experiments/runner/kind.h"

namespace splash::experiments::tests {
namespace {

class Toy : public Kind {
 public:
  std::string name() const override { return "toy"; }
  std::string summary() const override { return "arithmetic for the runner's tests"; }

  std::vector<ParameterInfo> parameters() const override {
    return {{"x", ParameterType::number, 1.0, "1", "a number", {}},
            {"n", ParameterType::integer, int64_t{3}, "1", "a count", {}},
            {"mode", ParameterType::text, std::string("plain"), "", "how", {"plain", "signed"}},
            {"strict", ParameterType::flag, false, "", "whether", {}}};
  }

  std::vector<report::ColumnInfo> columns() const override {
    return {
        {.name = "y", .units = "1", .long_name = "x to the n", .formula = "x^n"},
        {.name = "odd",
         .units = "1",
         .long_name = "not always there",
         .formula = "n mod 2",
         .missing_reason = "n is 0"},
        {.name = "twice", .units = "1", .long_name = "double of y", .formula = "2 y"},
        {.name = "label", .units = "1", .long_name = "text", .formula = "mode and n", .is_text = true},
        {.name = "series", .units = "1", .long_name = "powers", .formula = "x^i", .dimension = "sample"},
        {.name = "seconds", .units = "s", .long_name = "time", .formula = "clock", .reproducible = false}};
  }

  // 99 stands for 3 and 4.
  std::vector<Value> choices(const std::string& parameter, const Value& value) const override {
    if (parameter == "n" && value == Value{int64_t{99}}) return {int64_t{3}, int64_t{4}};
    return {value};
  }

  void check(const Parameters& parameters) const override {
    if (get_integer(parameters, "n") < 0) throw InvalidArgument("n is negative; it must be >= 0");
  }

  std::string input_hash(const Parameters&) const override { return toy().inputs; }

  CaseResult evaluate(const Parameters& parameters) const override {
    if (toy().evaluations++ == toy().fail_at) throw Unsupported("the toy breaks");
    const double x = get_number(parameters, "x");
    const int64_t n = get_integer(parameters, "n");
    CaseResult result;
    result.numbers["y"] = get_text(parameters, "mode") == "signed" ? -std::pow(x, n) : std::pow(x, n) / 3;
    if (n > 0) result.numbers["odd"] = static_cast<double>(n % 2);
    result.texts["label"] = fmt::format("{} \"{}\"\tα", get_text(parameters, "mode"), n);
    for (int64_t i = 0; i < n; ++i) result.vectors["series"].push_back(std::pow(x, i) / 7);
    result.numbers["seconds"] = static_cast<double>(toy().evaluations);
    const double infinity = std::numeric_limits<double>::infinity();
    if (n == 2) {
      result.attachments.push_back({.case_id = "",
                                    .name = "map",
                                    .units = "1",
                                    .long_name = "a map",
                                    .formula = "made up",
                                    .dimensions = {"row", "column"},
                                    .extents = {2, 2},
                                    .numbers = {x, -infinity, infinity, std::nan("")},
                                    .labels = {{"row", {"first", "second"}}}});
    }
    return result;
  }

  void complete(const Parameters& parameters, CaseResult& result) const override {
    if (toy().completion_fails && get_integer(parameters, "n") == 3)
      throw Unsupported("the toy is not whole");
    result.numbers["twice"] = 2 * result.numbers.at("y");
  }
};

const Toy kKind;
const KindRegistration kRegistration(kKind);

}  // namespace

ToyState& toy() {
  static ToyState state;
  return state;
}

}  // namespace splash::experiments::tests
