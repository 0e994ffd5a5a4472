#include "analysis/ncu_units.h"

#include <array>
#include <utility>

namespace splash::analysis {
namespace {

struct Unit {
  const char* name;
  Quantity quantity;
  double factor;
};

// ncu scales by powers of 1000: 11,105,984 sectors of 32 bytes are 355.391488 Mbyte.
constexpr Unit kUnits[] = {
    {"byte", Quantity::bytes, 1},
    {"sector", Quantity::sectors, 1},
    {"sectors", Quantity::sectors, 1},
    {"inst", Quantity::count, 1},
    {"register", Quantity::count, 1},
    {"thread", Quantity::count, 1},
    {"cycle", Quantity::count, 1},
    {"block", Quantity::count, 1},
    {"warp", Quantity::count, 1},
    {"SM", Quantity::count, 1},
    {"inst/cycle", Quantity::count, 1},
    {"byte/sector", Quantity::count, 1},
    {"", Quantity::count, 1},
    {"", Quantity::sectors, 1},
    {"%", Quantity::share, 0.01},
    {"second", Quantity::seconds, 1},
    {"s", Quantity::seconds, 1},
    {"msecond", Quantity::seconds, 1e-3},
    {"ms", Quantity::seconds, 1e-3},
    {"usecond", Quantity::seconds, 1e-6},
    {"us", Quantity::seconds, 1e-6},
    {"nsecond", Quantity::seconds, 1e-9},
    {"ns", Quantity::seconds, 1e-9},
    {"hz", Quantity::per_second, 1},
    {"Hz", Quantity::per_second, 1},
    {"cycle/second", Quantity::per_second, 1},
    {"cycle/s", Quantity::per_second, 1},
    {"cycle/usecond", Quantity::per_second, 1e6},
    {"cycle/us", Quantity::per_second, 1e6},
    {"cycle/nsecond", Quantity::per_second, 1e9},
    {"cycle/ns", Quantity::per_second, 1e9},
    {"cycle/msecond", Quantity::per_second, 1e3},
    {"byte/second", Quantity::bytes_per_second, 1},
    {"byte/s", Quantity::bytes_per_second, 1},
    {"byte/nsecond", Quantity::bytes_per_second, 1e9},
    {"byte/ns", Quantity::bytes_per_second, 1e9},
};

std::optional<double> plain_factor(const std::string& name, Quantity quantity) {
  for (const Unit& u : kUnits) {
    if (u.name == name && u.quantity == quantity) return u.factor;
  }
  return std::nullopt;
}

}  // namespace

std::optional<double> factor_of(const std::string& unit, Quantity quantity) {
  // The part after the slash does not change the number: "Kbyte/block", "register/thread".
  std::string name = unit;
  for (const char* per : {"/block", "/thread"}) {
    if (name.ends_with(per)) name.resize(name.size() - std::string(per).size());
  }
  if (const auto plain = plain_factor(name, quantity)) return plain;
  constexpr std::array<std::pair<char, double>, 5> kPrefixes{
      {{'K', 1e3}, {'k', 1e3}, {'M', 1e6}, {'G', 1e9}, {'T', 1e12}}};
  for (const auto& [letter, scale] : kPrefixes) {
    if (name.size() < 2 || name[0] != letter) continue;
    if (const auto base = plain_factor(name.substr(1), quantity)) return scale * *base;
  }
  return std::nullopt;
}

const char* units_of(Quantity quantity) {
  switch (quantity) {
    case Quantity::bytes:
      return "byte to Tbyte";
    case Quantity::sectors:
      return "sector to Tsector";
    case Quantity::seconds:
      return "ns, us, ms or s";
    case Quantity::share:
      return "%";
    case Quantity::count:
      return "inst, register or none";
    case Quantity::bytes_per_second:
      return "byte/s to Tbyte/s";
    case Quantity::per_second:
      return "Hz to Ghz or cycle/ns";
  }
  return "";
}

}  // namespace splash::analysis
