// What another attention in softmax's place costs a language model as it is, or after training.

#include "experiments/kinds/language_model.h"

namespace splash::experiments {
namespace {

LanguageWork method_work(const Parameters& p) {
  return {{"method", get_text(p, "method")}};
}

class ModelPerplexity : public Kind {
 public:
  std::string name() const override { return "model-perplexity"; }
  std::string summary() const override {
    return "perplexity of a language model with another attention in softmax's place, its heads' keys and "
           "divergence";
  }

  std::vector<ParameterInfo> parameters() const override {
    std::vector<ParameterInfo> list = language_parameters();
    list.push_back(
        {"method",
         ParameterType::text,
         std::string("softmax"),
         "",
         "KIND:NAME=VALUE,… as `python -m splash_attention.language perplexity` takes it, a file of "
         "`tune` or `convert`, or tuned:budget=KEYS, tuned here on the development part",
         {}});
    return list;
  }

  std::vector<analysis::ColumnInfo> columns() const override { return language_columns(); }

  void add_from_inputs(Parameters& set) const override {
    const Parameters p = with_defaults(*this, set);
    check_language_case(p);
    prepare_language_case(p, method_work(p));
  }
  void check(const Parameters& p) const override { check_language_case(p); }
  Parameters used(const Parameters& p) const override {
    Parameters kept = p;
    kept.erase("fetch");
    return kept;
  }
  std::string input_hash(const Parameters& p) const override {
    return language_fingerprint(p, method_work(p));
  }
  CaseResult evaluate(const Parameters& p) const override {
    return run_language_case("perplexity", p, method_work(p));
  }
};

const ModelPerplexity kModelPerplexity;
const KindRegistration kModelPerplexityRegistration(kModelPerplexity);

}  // namespace
}  // namespace splash::experiments
