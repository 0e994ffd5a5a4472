#pragma once
// Independent work on all cores: the project's only OpenMP region.
//
//   parallel_for(rows, 1, [&](int64_t row) { out[row] = f(row); });
//
// What the work throws on any thread, including std::bad_alloc, is rethrown to the caller. (An exception that
// leaves an OpenMP region ends the process.) It keeps working after fork(), which GNU's OpenMP alone does
// not: docs/decisions/0026-one-parallel-loop.md.

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>

namespace splash {

namespace detail {

// Calls work(argument), which must not throw, on every thread of a team. Throws std::bad_alloc if the system
// has no memory for the team's threads.
void on_team(void (*work)(void*), void* argument);

}  // namespace detail

// Calls body(state, i) for every i of [0, count). A thread takes `at_once` consecutive i at a time; which
// thread takes which is unspecified. Each thread first makes its own state. An exception ends the loop: no
// thread begins another chunk, and one of the exceptions is rethrown.
template <class MakeState, class Body>
void parallel_for_with(int64_t count, int64_t at_once, const MakeState& make_state, const Body& body) {
  std::atomic<int64_t> next{0};
  std::atomic<bool> failed{false};
  std::exception_ptr failure;
  auto work = [&]() noexcept {
    try {
      auto state = make_state();
      for (int64_t begin = 0; !failed && (begin = next.fetch_add(at_once)) < count;) {
        const int64_t end = std::min(count, begin + at_once);
        for (int64_t i = begin; i < end; ++i) body(state, i);
      }
    } catch (...) {
      if (!failed.exchange(true)) failure = std::current_exception();
    }
  };
  if (count <= 0) return;
  if (count <= at_once) {
    work();
  } else {
    detail::on_team([](void* argument) { (*static_cast<decltype(work)*>(argument))(); },
                    std::addressof(work));
  }
  if (failure) std::rethrow_exception(failure);
}

// A value for `at_once` when a body fills a single number.
constexpr int64_t kElementsAtOnce = 4096;

template <class Body>
void parallel_for(int64_t count, int64_t at_once, const Body& body) {
  struct None {};
  parallel_for_with(
      count, at_once, [] { return None{}; }, [&body](None&, int64_t i) { body(i); });
}

}  // namespace splash
