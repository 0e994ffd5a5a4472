// Trains a language model to compute with another attention, and measures what that costs.

#include "experiments/kinds/support/language_model.h"
#include "experiments/kinds/support/timing.h"

namespace splash::experiments {
namespace {

class ModelConversion : public LanguageKind {
 public:
  std::string name() const override { return "model-conversion"; }
  std::string summary() const override {
    return "perplexity of a language model after a little training with another attention";
  }

  std::vector<ParameterInfo> parameters() const override {
    std::vector<ParameterInfo> list = LanguageKind::parameters();
    list.push_back({"plan",
                    ParameterType::text,
                    std::string("schedule=learned"),
                    "",
                    "how it is trained, on the training part: NAME=VALUE,… of "
                    "splash_attention.language.Plan; start may be "
                    "tuned:budget=KEYS, tuned here on the development part",
                    {}});
    list.push_back({"seconds",
                    ParameterType::number,
                    3600.0,
                    "s",
                    "training stops after so long, and with it the run; --resume goes on with both",
                    {}});
    return list;
  }

  std::vector<report::ColumnInfo> columns() const override {
    std::vector<report::ColumnInfo> columns = LanguageKind::columns();
    columns.push_back({.name = "loss",
                       .units = "nat",
                       .long_name = "nll of a token in training",
                       .formula = "mean over a step's windows",
                       .reproducible = false,
                       .missing_reason = kNotMeasured,
                       .dimension = "step"});
    columns.push_back({.name = "step_seconds_median",
                       .units = "s",
                       .long_name = "time of a training step",
                       .formula = "wall clock, median over steps",
                       .reproducible = false,
                       .missing_reason = kNotMeasured});
    columns.push_back({.name = "trained_hash",
                       .units = "text",
                       .long_name = "SHA-256 of the adapter, or of all weights where they were trained",
                       .formula = "of the file in the cache",
                       .is_text = true,
                       .reproducible = false,
                       .missing_reason = kNotMeasured});
    return columns;
  }

  void check(const Parameters& p) const override {
    LanguageKind::check(p);
    require_positive(p, "seconds");
  }
  Parameters used(const Parameters& p) const override {
    Parameters kept = LanguageKind::used(p);
    kept.erase("seconds");
    return kept;
  }

 private:
  std::string ask() const override { return "conversion"; }
  LanguageWork work(const Parameters& p) const override {
    return {{"plan", get_text(p, "plan")}, {"seconds", get_number(p, "seconds")}};
  }
};

const ModelConversion kModelConversion;
const KindRegistration kModelConversionRegistration(kModelConversion);

}  // namespace
}  // namespace splash::experiments
