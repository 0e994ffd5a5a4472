// TOML: experiments' definitions with their cases, claims, machines, plans of Kascade.

#include "core/error.h"
#include "core/kascade_plan.h"
#include "experiments/claims/claim.h"
#include "experiments/runner/definition.h"
#include "analysis/machine.h"
#include "fuzz/target.h"

namespace {

using namespace splash;
using namespace splash::experiments;

// Of every type one parameter, and the words of the seeds.
class FuzzKind final : public Kind {
 public:
  std::string name() const override { return "fuzz"; }
  std::string summary() const override { return "takes what the seeds say"; }
  std::vector<ParameterInfo> parameters() const override {
    return {{"alpha", ParameterType::number, 1.5, "1", "alpha", {}},
            {"seed", ParameterType::integer, int64_t{1}, "1", "seed", {}},
            {"n", ParameterType::integer, int64_t{64}, "1", "keys", {}},
            {"causal", ParameterType::flag, false, "1", "mask", {}},
            {"input", ParameterType::text, std::string("gaussian"), "", "input", {"gaussian", "minilm"}},
            {"solver", ParameterType::text, std::string("newton"), "", "solver", {}}};
  }
  std::vector<report::ColumnInfo> columns() const override { return {{.name = "nmse", .units = "1"}}; }
  void check(const Parameters&) const override {}
  std::string input_hash(const Parameters&) const override { return ""; }
  CaseResult evaluate(const Parameters&) const override { return {}; }
};

const FuzzKind kind;
const KindRegistration registration(kind);

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  fuzz::expect<InvalidArgument>([&] {
    const Definition definition = parse_definition(text, "fuzz", "fuzz.toml");
    if (case_count(definition.full) <= 1000) expand(definition, definition.full);
    if (case_count(definition.quick) <= 1000) expand(definition, definition.quick);
  });
  fuzz::expect<InvalidArgument>([&] { parse_claims(text, "fuzz.toml"); });
  fuzz::expect<InvalidArgument>([&] { analysis::parse_machine(text, "fuzz.toml"); });
  fuzz::expect<InvalidArgument>([&] { to_toml(parse_kascade_plan(text, "fuzz.toml")); });
  return 0;
}
