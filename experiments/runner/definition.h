#pragma once
// An experiment's definition, read from TOML.
//
//   title = "Accuracy against K_KEEP"          kind = "attention-accuracy"
//   reproduce = true                            # part of `splash reproduce`
//   [fixed]  alpha = 1.5   input = "heads.h5"    # a word, or a file of q, k and v by its path from the
//                                               # working directory; what it says fills what is not set here
//   [axes]   k_keep = [1, 2, 4]                 # the product; the last axis changes fastest
//   [zip]    layer = [0, 5]   head = [3, 1]     # step together; the slowest factor of the product
//   [quick.axes] k_keep = [4]                   # the quick profile says what differs
//   [[expect]]
//   claim = "S4.3"   column = "mse"   where = { scope = "row" }   statistic = "median"

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "experiments/runner/kind.h"

namespace splash::experiments {

struct Axis {
  std::string name;
  std::vector<Value> values;
  bool operator==(const Axis&) const = default;
};

struct Profile {
  Parameters fixed;
  std::vector<Axis> axes;  // in the order of the file
  std::vector<Axis> zip;   // of equal length
  bool operator==(const Profile&) const = default;
};

// Selects cases: for every name, the case's column of that name must hold one of these values.
using Filter = std::map<std::string, std::vector<Value>>;

enum class Statistic { median, mean, min, max, sum, p05, p95, fraction_true, median_case };
const std::vector<std::string>& statistic_names();

// A statistic of one column over the cases that the filter selects.
struct Measurement {
  std::string column;
  Filter where;
  Statistic statistic = Statistic::median;
  Filter held{};  // as `where`, but takes cases too on which the parameter has no effect
};

enum class Relation { equal, below, above };
const char* to_string(Relation relation);
Relation relation_from_string(const std::string& name);  // throws InvalidArgument

// How to divide: measured / over; 100 measured / over; 100 (measured / over - 1).
enum class RatioAs { ratio, percent, gain_percent };

// Links a measurement of an experiment to a claim of data/claims, or to a bound of the project's own
// ("check").
struct Expectation {
  std::string claim;  // a claim's id; "" if check is set
  std::string check;  // the name of a bound that this project set itself, with:
  Relation relation = Relation::below;
  double bound = 0, tolerance = 0;
  Measurement measured;
  std::optional<Measurement> over;  // ours = measured / over
  RatioAs as = RatioAs::ratio;
  int line = 0;
};

struct Definition {
  std::string name;  // the file's name without .toml
  std::string file;  // the path that was opened
  std::string toml;  // verbatim
  std::string title, description, kind;
  bool reproduce = false;
  Profile full, quick;  // quick equals full if the file has no [quick]
  std::vector<Expectation> expectations;
  Filter overrides;  // what --set changed: the values of each parameter

  const Profile& profile(bool want_quick) const { return want_quick ? quick : full; }
};

// Throws InvalidArgument with one sentence: file and line, what is wrong, and what is allowed.
Definition read_definition(const std::string& path);
Definition parse_definition(const std::string& toml, const std::string& name, const std::string& file);

// All *.toml of the folder, by name.
std::vector<std::string> definition_files(const std::string& folder);

// Takes "accuracy", "path/to/file.toml", or a folder, which stands for every definition in it. Names are
// looked up in `files`. Throws InvalidArgument that suggests the nearest name.
std::vector<Definition> find_definitions(const std::string& name_or_path,
                                         const std::vector<std::string>& files);

int64_t case_count(const Profile& profile);

// Every case's complete parameters, in order: the zip changes slowest, then the axes, the last of them
// fastest. All other parameters are fixed or the kind's defaults. Throws InvalidArgument if the kind refuses
// a case.
std::vector<Parameters> expand(const Definition& definition, const Profile& profile);

// Sets a parameter in both profiles, to one value or to an axis of several. `assignment` is "name=values", as
// on the command line; parsed_values() tells what values may be. An axis keeps its place, a new one changes
// fastest. Expectations that ask for other values are dropped. Of a parameter that the definition holds at
// one value, a new axis leaves them at that value: a claim about alpha 1.5 is not judged by cases of alpha 2.
// Throws InvalidArgument, also if the parameter was overridden before.
void override_parameter(Definition& definition, const std::string& assignment);

// What --set changed, each as it is given again: "alpha=1.2,1.5". Holds no spaces.
std::vector<std::string> override_texts(const Definition& definition);

// Drops the expectations that no case can meet, because --set took the values that they ask for.
void drop_excluded_expectations(Definition& definition);

}  // namespace splash::experiments
