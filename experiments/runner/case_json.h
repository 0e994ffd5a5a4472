#pragma once
// Converts a case's result to JSON and back without loss: doubles keep every bit, including NaN and
// infinities.

#include <string>

#include <nlohmann/json_fwd.hpp>

#include "experiments/runner/kind.h"

namespace splash::experiments {

nlohmann::json to_json(const CaseResult& result);
CaseResult case_result_from_json(const nlohmann::json& source);  // throws nlohmann::json::exception

// A number for JSON, which knows neither NaN nor infinity: those become "nan", "inf" and "-inf".
nlohmann::json exact_number(double value);

// The same for other programs: NaN and infinities become null.
nlohmann::json plain_number(double value);

nlohmann::json to_json(const Value& value);

}  // namespace splash::experiments
