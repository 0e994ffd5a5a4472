#pragma once
// A machine, ceilings and refusals for the tests of the models.

#include <string>

#include "analysis/occupancy.h"
#include "core/error.h"
#include "report/report.h"

namespace splash::analysis::testing {

constexpr Multiprocessors kMachine{
    .count = 100, .warps = 64, .blocks = 32, .registers = 65536, .shared_bytes = 233472};

inline report::Ceiling ceiling(const char* name, const char* dtype, double measured) {
  report::Ceiling c;
  c.name = name;
  c.dtype = dtype;
  c.measured = measured;
  return c;
}

// The message of the InvalidArgument that `call` throws; "" if it throws none.
template <class Call>
std::string message_of(const Call& call) {
  try {
    call();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "";
}

}  // namespace splash::analysis::testing
