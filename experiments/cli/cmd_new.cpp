// splash new: writes the skeleton of a rung, a kind, a claim or a machine.

#include <fmt/format.h>

#include "core/suggest.h"
#include "experiments/cli/command.h"
#include "experiments/cli/console.h"
#include "experiments/cli/skeletons.h"
#include "experiments/runner/narrate.h"

namespace splash::cli {

int cmd_new(const Words& words) {
  CLI::App app;
  prepare(
      app, "new",
      "splash new rung wmma/tile-96\n"
      "splash new kind row-support\n"
      "splash new claim P5.1\n"
      "splash new machine b200-sxm",
      "Writes a skeleton into the project, which builds and is tested as it stands, and prints its files:\n"
      "a rung of a ladder, old or new (the next number is its own); a kind of experiment with a definition\n"
      "and a test; a claim, in the file of its source; a machine, whose values are to be filled in.\n"
      "A name that is taken is refused; no file is overwritten.");
  std::string what, name;
  app.add_option("WHAT", what, "rung, kind, claim or machine")->required();
  app.add_option("NAME", name, "its name; of a rung LADDER/NAME")->required();
  parse(app, words);
  const std::pair<const char*, Skeleton (*)(const std::string&)> known[] = {
      {"rung", new_rung}, {"kind", new_kind}, {"claim", new_claim}, {"machine", new_machine}};
  std::vector<std::string> names;
  for (const auto& [word, write] : known) {
    names.emplace_back(word);
    if (word != what) continue;
    const Skeleton skeleton = write(name);
    for (const std::string& file : skeleton.files) print(file + "\n");
    experiments::narrate("next: {}", skeleton.next_step);
    return kDone;
  }
  throw InvalidArgument(
      fmt::format("there is no skeleton of a '{}'{}", what, splash::suggestion(what, names)));
}

}  // namespace splash::cli
