#include "gpu/entmax/support/notice.h"

#include <atomic>
#include <mutex>
#include <vector>

#include "gpu/cuda_check.h"

namespace splash::gpu::entmax {
namespace {

constexpr size_t kWords = 4096;  // that are pinned at once: pinning takes a millisecond

// Words that no forward has. They are never given back to the system: forwards on any stream may still write.
class FreeWords {
 public:
  NoticeWord take() {
    const std::scoped_lock lock(mutex_);
    if (free_.empty()) pin();
    NoticeWord word = free_.back();
    free_.pop_back();
    word.ticket = (word.ticket + 1) % (1u << NoticeWord::kTicketBits);
    return word;
  }
  void give_back(const NoticeWord& word) {
    const std::scoped_lock lock(mutex_);
    free_.push_back(word);
  }

 private:
  void pin() {
    void* words = nullptr;
    check_cuda(cudaHostAlloc(&words, kWords * sizeof(unsigned long long), cudaHostAllocPortable),
               "pin memory for notices of forwards");
    auto* const first = static_cast<unsigned long long*>(words);
    free_.reserve(free_.size() + kWords);
    for (size_t i = 0; i < kWords; ++i) {
      first[i] = 0;
      free_.push_back({first + i, 0});
    }
  }

  std::mutex mutex_;
  std::vector<NoticeWord> free_;
};

FreeWords& free_words() {
  static auto* const words = new FreeWords;  // outlives whoever holds a notice at the program's end
  return *words;
}

}  // namespace

Notice::Notice(uint64_t problem) : problem_(problem), word_(free_words().take()) {}

Notice::~Notice() {
  free_words().give_back(word_);
}

std::optional<int64_t> Notice::entries(StreamHandle behind) const {
  constexpr int kLooks = 256;  // between two questions to the stream, which take a microsecond
  const auto told = [&]() -> std::optional<int64_t> {
    const unsigned long long word = std::atomic_ref(*word_.address).load(std::memory_order_acquire);
    if (word >> NoticeWord::kUsedBits != word_.ticket) return std::nullopt;
    return static_cast<int64_t>(word & NoticeWord::most());
  };
  for (;;) {
    for (int look = 0; look < kLooks; ++look) {
      if (const auto found = told()) return found;
    }
    const cudaError_t status = cudaStreamQuery(behind);
    if (status == cudaSuccess) return told();
    if (status != cudaErrorNotReady) check_cuda(status, "wait for forward");
  }
}

}  // namespace splash::gpu::entmax
