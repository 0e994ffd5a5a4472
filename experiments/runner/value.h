#pragma once
// Values of parameters: converts them to and from text, and checks them against their declaration.

#include <string>
#include <vector>

#include "experiments/runner/kind.h"

namespace splash::experiments {

const char* to_string(ParameterType type);  // "integer", "number", "flag", "text"

// Writes numbers with the fewest digits that read back as the same double.
std::string to_text(const Value& value);

// The value in the declared type (integers serve as numbers). Throws InvalidArgument for another type, a
// number that is not finite, or a text that is not allowed; the message names the parameter.
Value checked(const ParameterInfo& info, const Value& value);

// The same from the command line's text, for example "1.5" or "true".
Value parsed(const ParameterInfo& info, const std::string& text);

// One or several values, as the command line gives them:
// - numbers and flags are separated by commas: "1.2,1.3,1.5";
// - a text is taken as it stands, commas and all: "schedule=learned,k_keep=64";
// - what begins with [ is a list in TOML's notation, of any type: ["newton", "bisection"].
std::vector<Value> parsed_values(const ParameterInfo& info, const std::string& text);

// The text, without spaces, that parsed_values reads as these values.
std::string values_text(const std::vector<Value>& values);

// The declared parameter of that name; throws InvalidArgument that suggests the nearest.
const ParameterInfo& find_parameter(const Kind& kind, const std::vector<ParameterInfo>& declared,
                                    const std::string& name);

}  // namespace splash::experiments
