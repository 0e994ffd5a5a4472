#include "core/parallel.h"

#include <cstddef>
#include <exception>
#include <latch>
#include <mutex>
#include <new>
#include <pthread.h>
#include <sys/mman.h>
#include <system_error>
#include <thread>
#include <vector>

#ifdef _OPENMP
#include <omp.h>
#endif

namespace splash::detail {
#ifndef _OPENMP  // for the fuzz targets, whose clang has no OpenMP

void on_team(void (*work)(void*), void* argument) {
  work(argument);
}

#else
namespace {

using Work = void (*)(void*);

std::atomic<int64_t> forks{0};  // between the process that first used a team and this one

// The team that the runtime keeps for this thread: its number of threads, and the number of forks when it
// began.
struct Team {
  int threads = 1;
  int64_t forks = 0;
};
thread_local Team team;

// Reserves address space while it lives. It does not use the heap, where only some threads could use the
// space later.
class Room {
 public:
  explicit Room(size_t bytes)
      : bytes_(bytes),
        begin_(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
    if (begin_ == MAP_FAILED) throw std::bad_alloc();
  }
  ~Room() { munmap(begin_, bytes_); }
  Room(const Room&) = delete;
  Room& operator=(const Room&) = delete;

 private:
  size_t bytes_;
  void* begin_;
};

// If the runtime gets no memory for its threads, it ends the process. So this tries first: it starts threads
// with the same stacks, all alive at once, while holding room for the records of each. The C library keeps
// the stacks for the next threads, which are the runtime's.
void require_room(int threads) {
  constexpr size_t kAThread = 64 << 10;  // more than the records of one thread take
  const auto extra = static_cast<size_t>(threads - 1);
  const Room notes(kAThread * extra);
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

// The C library allocates a library's thread-local variables when a thread first uses one, and ends the
// process if it has no memory for them. So every thread uses this library's and the C++ library's (which
// track exceptions) before the work can take the remaining memory.
void meet_first(int threads) {
  require_room(threads);
  std::atomic<int64_t> used{0};
#pragma omp parallel num_threads(threads)
  used += team.threads + std::uncaught_exceptions();
}

void on_own_team(int threads, Work work, void* argument) {
  if (threads > team.threads) meet_first(threads);
  team = {threads, forks};
#pragma omp parallel num_threads(threads)
  work(argument);
}

// A forked child has only the thread that forked. The runtime does not know that and would wait forever for
// the others. It keeps one team per thread that begins a region, so a new thread gets a new team.
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
