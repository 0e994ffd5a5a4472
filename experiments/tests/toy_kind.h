#pragma once
// A kind of experiment that costs nothing and has every sort of column, for the tests of the runner.

#include <cstdint>
#include <string>

#include <doctest/doctest.h>

namespace splash::experiments::tests {

struct ToyState {
  int64_t evaluations = 0;
  int64_t fail_at = -1;             // the evaluation that throws; -1: none
  bool completion_fails = false;    // for cases with n = 3
  std::string inputs = "inputs-1";  // what input_hash() says
};
ToyState& toy();  // state of the registered kind "toy"

// The text with its first `from` replaced by `to`.
inline std::string changed(std::string text, const std::string& from, const std::string& to) {
  const auto at = text.find(from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

// The message of what `action` throws; "" if it throws nothing.
template <class Action>
std::string message_of(Action&& action) {
  try {
    action();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace splash::experiments::tests
