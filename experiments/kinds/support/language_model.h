#pragma once
// The base of the kinds that measure a language model. Python measures
// (python/splash_laboratory/language_model), in one process per run, which keeps the last model loaded.

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "experiments/runner/kind.h"

namespace splash::experiments {

// What of a case names the work beside model and windows: {"method": …}, or {"plan": …, "seconds": …}.
using LanguageWork = nlohmann::json;

class LanguageKind : public Kind {
 public:
  // model, text, part, window, windows, looked_at, device, dtype, fetch.
  std::vector<ParameterInfo> parameters() const override;
  // Perplexity, its difference to softmax's, supports, divergence, and what was measured on what.
  std::vector<report::ColumnInfo> columns() const override;

  // Fetches what is missing where `fetch` says so, having told how much. Throws InvalidArgument where method
  // or plan cannot be read. Where Python or its packages are missing it does nothing: such cases are not run.
  void add_from_inputs(Parameters& set) const override;
  void check(const Parameters& p) const override;
  Parameters used(const Parameters& p) const override;
  // Throws InvalidArgument where model or text is not there.
  std::string input_hash(const Parameters& p) const override;
  // Throws Error where it cannot be measured; where this machine lacks a device or a package, the result's
  // version says so.
  CaseResult evaluate(const Parameters& p) const override;

 protected:
  static constexpr const char* kNotMeasured = "the case was not run (column version says why)";

 private:
  virtual std::string ask() const = 0;  // of the peer: "perplexity" or "conversion"
  virtual LanguageWork work(const Parameters& p) const = 0;
};

}  // namespace splash::experiments
