// The kinds of language models from the runner's side. Python tests what they measure
// (test_language_kinds.py).

#include <doctest/doctest.h>

#include "experiments/runner/definition.h"
#include "experiments/runner/kind.h"
#include "experiments/runner/record.h"

namespace splash::experiments {

TEST_CASE("a limit of training time makes no other experiment; a length of windows does") {
  Definition definition =
      parse_definition("title = 'training'\nkind = 'model-conversion'\n[axes]\nplan = ['steps=1']\n",
                       "conversion", "conversion.toml");
  PlannedCase planned;
  planned.parameters =
      with_defaults(find_kind("model-conversion"), {{"plan", std::string("steps=1")}, {"seconds", 5.0}});
  const std::string plain = record({definition}, false, {planned});
  override_parameter(definition, "seconds=5");
  CHECK(record({definition}, false, {planned}) == plain);
  override_parameter(definition, "window=64");
  CHECK(record({definition}, false, {planned}).find("set: window=64\n") != std::string::npos);
}

}  // namespace splash::experiments
