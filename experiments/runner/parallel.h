#pragma once
// Independent work on all cores, where one piece may throw.

#include <cstddef>
#include <exception>

namespace splash::experiments {

// f(i) for every i below `count`, several at once. What one throws is thrown when all are done; of several,
// one.
template <class F>
void for_each_in_parallel(std::size_t count, const F& f) {
  std::exception_ptr failure;
#pragma omp parallel for schedule(dynamic)
  for (std::size_t i = 0; i < count; ++i) {
    try {
      f(i);
    } catch (...) {
#pragma omp critical
      failure = std::current_exception();
    }
  }
  if (failure != nullptr) std::rethrow_exception(failure);
}

}  // namespace splash::experiments
