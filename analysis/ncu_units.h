#pragma once
// The units in which Nsight Compute prints its metrics.

#include <optional>
#include <string>

namespace splash::analysis {

// per_second: of cycles, a clock in Hz.
enum class Quantity { bytes, sectors, seconds, share, count, bytes_per_second, per_second };

// What a value in that unit is multiplied by to give bytes, sectors, seconds, a share of 1, a plain count,
// bytes per second or Hz. Empty if the unit is not one of the quantity's. ncu scales by powers of 1000.
std::optional<double> factor_of(const std::string& unit, Quantity quantity);

const char* units_of(Quantity quantity);  // "byte to Tbyte"

}  // namespace splash::analysis
