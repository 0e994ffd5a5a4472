#pragma once
// A case's result as JSON and back without loss: doubles keep every bit, NaN and infinities included.

#include <string>

#include <nlohmann/json_fwd.hpp>

#include "experiments/runner/kind.h"

namespace splash::experiments {

nlohmann::json to_json(const CaseResult& result);
CaseResult case_result_from_json(const nlohmann::json& source);  // throws nlohmann::json::exception

// A number for JSON, which knows neither NaN nor infinity: those become "nan", "inf" and "-inf".
nlohmann::json exact_number(double value);

// The same for people's tools: NaN and infinities become null.
nlohmann::json plain_number(double value);

nlohmann::json to_json(const Value& value);

}  // namespace splash::experiments
