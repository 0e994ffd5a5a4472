// Measures the cost for a language model of replacing softmax by another attention, as it is or after
// training.

#include "experiments/kinds/support/language_model.h"

namespace splash::experiments {
namespace {

class ModelPerplexity : public LanguageKind {
 public:
  std::string name() const override { return "model-perplexity"; }
  std::string summary() const override {
    return "perplexity of a language model with another attention in softmax's place, its heads' keys and "
           "divergence";
  }

  std::vector<ParameterInfo> parameters() const override {
    std::vector<ParameterInfo> list = LanguageKind::parameters();
    list.push_back(
        {"method",
         ParameterType::text,
         std::string("softmax"),
         "",
         "KIND:NAME=VALUE,… as `python -m splash_attention.language perplexity` takes it, a file of "
         "`tune` or `convert`; tuned:budget=KEYS, tuned here on the development part; or "
         "kascade:anchors=N,budget=SHARE, planned here on it",
         {}});
    return list;
  }

 private:
  std::string ask() const override { return "perplexity"; }
  LanguageWork work(const Parameters& p) const override { return {{"method", get_text(p, "method")}}; }
};

const ModelPerplexity kModelPerplexity;
const KindRegistration kModelPerplexityRegistration(kModelPerplexity);

}  // namespace
}  // namespace splash::experiments
