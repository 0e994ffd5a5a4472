#include "core/parallel.h"

#include <cstddef>
#include <exception>
#include <latch>
#include <mutex>
#include <new>
#include <pthread.h>
#include <system_error>
#include <thread>
#include <vector>

#ifdef _OPENMP
#include <omp.h>
#endif

namespace splash::detail {
#ifndef _OPENMP  // the fuzz targets, with a clang that has no OpenMP

void on_team(void (*work)(void*), void* argument) {
  work(argument);
}

#else
namespace {

using Work = void (*)(void*);

std::atomic<int64_t> forks{0};  // of this process from its ancestors, since one of them used a team

// The team that the runtime keeps for this thread: how many threads, and before which fork.
struct Team {
  int threads = 1;
  int64_t forks = 0;
};
thread_local Team team;

// Where the runtime gets no memory for its threads, it ends the process. So ask before it does: threads of
// the same stacks, all alive at once. The C library keeps their stacks for the next threads, which are the
// runtime's.
void require_room(int threads) {
  constexpr size_t kAThread = 64 << 10;  // more than the runtime's records of one
  const auto extra = static_cast<size_t>(threads - 1);
  ::operator delete(::operator new(kAThread* extra));
  std::vector<std::thread> tried;
  tried.reserve(extra);
  std::latch all_tried(1);
  bool room = true;
  try {
    for (size_t i = 0; i < extra; ++i) tried.emplace_back([&all_tried] { all_tried.wait(); });
  } catch (const std::exception&) {
    room = false;
  }
  all_tried.count_down();
  for (std::thread& thread : tried) thread.join();
  if (!room) throw std::bad_alloc();
}

void on_own_team(int threads, Work work, void* argument) {
  if (threads > team.threads) require_room(threads);
  team = {threads, forks};
#pragma omp parallel num_threads(threads)
  work(argument);
}

// A child has no threads but the one that forked; the runtime does not know and would wait for the others
// forever. It keeps one team for each thread that begins a region, so a new thread gets a new team.
void on_new_thread(int threads, Work work, void* argument) {
  std::exception_ptr failure;
  const auto region = [&] {
    try {
      on_own_team(threads, work, argument);
    } catch (...) {
      failure = std::current_exception();
    }
  };
  try {
    std::thread(region).join();
  } catch (const std::system_error&) {
    throw std::bad_alloc();
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace

void on_team(Work work, void* argument) {
  const int threads = std::min(omp_get_max_threads(), omp_get_thread_limit());
  if (threads <= 1 || omp_get_active_level() >= omp_get_max_active_levels()) return work(argument);
  static std::once_flag once;
  std::call_once(once, [] { pthread_atfork(nullptr, nullptr, [] { ++forks; }); });
  const bool lost = team.threads > 1 && team.forks != forks;
  (lost ? on_new_thread : on_own_team)(threads, work, argument);
}

#endif
}  // namespace splash::detail
