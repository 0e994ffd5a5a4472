#pragma once
// Values of parameters: as text, and checked against their declaration.

#include <string>

#include "experiments/runner/kind.h"

namespace splash::experiments {

const char* to_string(ParameterType type);  // "integer", "number", "flag", "text"

// Numbers with the fewest digits that give the same double back.
std::string to_text(const Value& value);

// The value in the type that the declaration asks for (integers serve as numbers). Throws InvalidArgument for
// another type, a number that is not finite, or a text that is not allowed; the sentence names the parameter.
Value checked(const ParameterInfo& info, const Value& value);

// The same from the command line's text, for example "1.5" or "true".
Value parsed(const ParameterInfo& info, const std::string& text);

// The declared parameter of that name; throws InvalidArgument, suggesting the nearest.
const ParameterInfo& find_parameter(const Kind& kind, const std::vector<ParameterInfo>& declared,
                                    const std::string& name);

}  // namespace splash::experiments
