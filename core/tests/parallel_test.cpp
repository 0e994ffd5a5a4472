#include "core/parallel.h"

#include <atomic>
#include <cerrno>
#include <csignal>
#include <new>
#include <numeric>
#include <omp.h>
#include <stdexcept>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include <doctest/doctest.h>

using namespace splash;

namespace {

struct Threads {  // sets the number of threads until the end of the test
  explicit Threads(int count) { omp_set_num_threads(count); }
  ~Threads() { omp_set_num_threads(before); }
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;
  int before = omp_get_max_threads();
};

bool counts_to(int64_t count) {
  std::vector<int> seen(static_cast<size_t>(count), 0);
  parallel_for(count, 3, [&](int64_t i) { ++seen[i]; });
  return std::ranges::all_of(seen, [](int n) { return n == 1; });
}

// What `check` returns in a child process. A child that hangs ends by itself and has not passed.
template <class Check>
bool in_child(const Check& check) {
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    alarm(30);
    _exit(check() ? 0 : 1);
  }
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

}  // namespace

TEST_CASE("every index is worked on once, by any number of threads") {
  for (const int threads : {1, 2, 5}) {
    const Threads set(threads);
    for (const int64_t count : {0, 1, 2, 3, 4, 1000}) CHECK(counts_to(count));
    CHECK_NOTHROW(parallel_for(-1, 1, [](int64_t) { throw 1; }));
  }
}

TEST_CASE("each thread makes its own state") {
  const Threads set(4);
  std::atomic<int64_t> made = 0, sum = 0;
  const auto make = [&] {
    ++made;
    return std::this_thread::get_id();
  };
  std::atomic<bool> strayed = false;
  parallel_for_with(1000, 1, make, [&](std::thread::id made_on, int64_t i) {
    if (made_on != std::this_thread::get_id()) strayed = true;
    sum += i;
  });
  CHECK(sum == 999 * 500);
  CHECK(made == 4);
  CHECK_FALSE(strayed);
}

TEST_CASE("what is thrown on any thread reaches the caller and ends the loop") {
  for (const int threads : {1, 2, 5}) {
    const Threads set(threads);
    for (const int64_t at : {0, 1, 500, 999}) {
      CHECK_THROWS_AS(parallel_for(1000, 1,
                                   [&](int64_t i) {
                                     if (i == at) throw std::bad_alloc();
                                   }),
                      std::bad_alloc);
    }
    CHECK_THROWS_AS(parallel_for(1000, 1, [](int64_t) { throw std::out_of_range("all"); }),
                    std::out_of_range);
    const auto make = [] {
      if (omp_get_thread_num() == omp_get_num_threads() - 1) throw std::length_error("no state");
      return 0;
    };
    CHECK_THROWS_AS(parallel_for_with(1000, 1, make, [](int, int64_t) { usleep(10); }), std::length_error);
    std::atomic<int64_t> done = 0;
    CHECK_THROWS_AS(parallel_for(1 << 20, 1,
                                 [&](int64_t i) {
                                   ++done;
                                   if (i == 3) throw 1;
                                 }),
                    int);
    CHECK(done < 1 << 20);
    CHECK(counts_to(1000));
  }
}

TEST_CASE("a loop inside a loop is done by the thread that is there") {
  const Threads set(2);
  std::atomic<int64_t> sum = 0;
  parallel_for(8, 1, [&](int64_t) { parallel_for(100, 7, [&](int64_t i) { sum += i; }); });
  CHECK(sum == 8 * 4950);
}

// GNU's OpenMP alone would wait here forever for threads that the child does not have.
TEST_CASE("a forked child goes on to work, on as many threads, and so do its own children") {
  const auto works = [] {
    const Threads set(3);  // for this thread
    std::atomic<int> threads = 0;
    const auto make = [&] { return ++threads; };
    parallel_for_with(1000, 1, make, [](int, int64_t) {});
    return threads == 3 && counts_to(1000) && counts_to(5000);
  };
  REQUIRE(works());
  CHECK(in_child(works));
  CHECK(in_child([&] { return works() && in_child(works); }));
  bool from_thread = false;  // a thread that had no team before the fork
  CHECK(in_child([&] {
    std::thread([&] { from_thread = works(); }).join();
    return from_thread && works();
  }));
  CHECK(works());
  bool forked_by_thread = false;  // a thread with a team of its own
  std::thread([&] { forked_by_thread = works() && in_child(works) && works(); }).join();
  CHECK(forked_by_thread);
}
