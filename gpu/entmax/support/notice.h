#pragma once
// How the host learns how many entries a forward wanted to store: from a word of its own memory, which the
// forward writes at its end. Nobody waits for a stream, which may hold other work by then, or copies
// anything. Compiles without nvcc.

#include <cstdint>
#include <optional>

#include "gpu/engine/memory.h"

namespace splash::gpu::entmax {

// The word, for kernels: the ticket, and in the lowest bits the number of entries. A word serves one forward
// after the other; the ticket says whose number it is.
struct NoticeWord {
  static constexpr int kUsedBits = 40, kTicketBits = 24;
  unsigned long long* address = nullptr;  // of pinned memory; null: nobody asks
  unsigned long long ticket = 0;

  static constexpr unsigned long long most() { return (1ull << kUsedBits) - 1; }
};

// Of one forward (ForwardArguments::notice). problem: store_key of what it computes.
class Notice {
 public:
  explicit Notice(uint64_t problem);  // throws DeviceError where there is no memory to pin
  ~Notice();
  Notice(const Notice&) = delete;
  Notice& operator=(const Notice&) = delete;

  uint64_t problem() const { return problem_; }
  NoticeWord word() const { return word_; }
  // Waits until the forward has told; behind it: a stream that was given the forward, or what waits for it.
  // Nothing where that stream is done and the word is not the forward's: another one, on another stream,
  // wrote there later. Throws DeviceError where the stream failed.
  std::optional<int64_t> entries(StreamHandle behind) const;

 private:
  uint64_t problem_;
  NoticeWord word_;
};

}  // namespace splash::gpu::entmax
