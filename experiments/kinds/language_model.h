#pragma once
// What the kinds that put a language model into the laboratory share. All measuring is Python's
// (python/splash_attention/language/laboratory.py), in one process for a whole run, which keeps the last
// model.

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "experiments/runner/kind.h"

namespace splash::experiments {

// model, text, part, window, windows, looked_at, device, dtype, fetch.
std::vector<ParameterInfo> language_parameters();

// Perplexity, its difference to softmax's, supports, divergence, and what was measured on what.
std::vector<analysis::ColumnInfo> language_columns();

// What of a case names the work beside model and windows: {"method": …}, or {"plan": …, "seconds": …}.
using LanguageWork = nlohmann::json;

// Before any case runs. Fetches what is missing where `fetch` says so, having told how much. Throws
// InvalidArgument where method or plan cannot be read, or model or text is not there. Where Python or its
// packages are missing it does nothing: such cases are not run.
void prepare_language_case(const Parameters& parameters, const LanguageWork& work);

void check_language_case(const Parameters& parameters);  // throws InvalidArgument
std::string language_fingerprint(const Parameters& parameters, const LanguageWork& work);

// `ask`: "perplexity" or "conversion". Throws Error where it cannot be measured; where this machine lacks a
// device or a package, the result's version says so.
CaseResult run_language_case(const std::string& ask, const Parameters& parameters, const LanguageWork& work);

}  // namespace splash::experiments
