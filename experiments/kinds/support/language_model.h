#pragma once
// The base of the kinds that measure a language model. Python does the measuring
// (python/splash_laboratory/language_model), in one process per run, which keeps the last model loaded.

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "experiments/runner/kind.h"

namespace splash::experiments {

// The part of a case that names the work, besides model and windows: {"method": …}, or {"plan": …, "seconds":
// …}.
using LanguageWork = nlohmann::json;

class LanguageKind : public Kind {
 public:
  // model, text, part, window, windows, looked_at, device, dtype and fetch.
  std::vector<ParameterInfo> parameters() const override;
  // Perplexity, its difference to softmax's, supports, divergence, and the setting in which they were
  // measured.
  std::vector<report::ColumnInfo> columns() const override;

  // If `fetch` says so, fetches what is missing, after saying how much that is. Throws InvalidArgument if
  // method or plan cannot be read. If Python or its packages are missing it does nothing; such cases are not
  // run.
  void add_from_inputs(Parameters& set) const override;
  void check(const Parameters& p) const override;
  Parameters used(const Parameters& p) const override;
  // Throws InvalidArgument if model or text is missing.
  std::string input_hash(const Parameters& p) const override;
  // If this machine lacks a device or a package, the result's version says so. Throws Error if the
  // measurement fails in another way.
  CaseResult evaluate(const Parameters& p) const override;

 protected:
  static constexpr const char* kNotMeasured = "the case was not run (column version says why)";

 private:
  virtual std::string ask() const = 0;  // what to ask the peer: "perplexity" or "conversion"
  virtual LanguageWork work(const Parameters& p) const = 0;
};

}  // namespace splash::experiments
