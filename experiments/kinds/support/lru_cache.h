#pragma once
// Keeps the most recently used results, up to a number of bytes.

#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <string>

namespace splash::experiments {

template <class T>
class LruCache {
 public:
  explicit LruCache(int64_t capacity_bytes) : capacity_(capacity_bytes) {}

  // make() builds the value of a key that is not cached; bytes(value) is its size. Only one thread may call
  // get() at a time; the values themselves are built with all threads.
  template <class Make, class Bytes>
  std::shared_ptr<const T> get(const std::string& key, const Make& make, const Bytes& bytes) {
    const std::lock_guard lock(mutex_);
    for (auto entry = entries_.begin(); entry != entries_.end(); ++entry) {
      if (entry->key != key) continue;
      entries_.splice(entries_.begin(), entries_, entry);
      return entries_.front().value;
    }
    auto value = std::make_shared<const T>(make());
    entries_.push_front({key, value, bytes(*value)});
    held_ += entries_.front().bytes;
    while (held_ > capacity_ && entries_.size() > 1) {
      held_ -= entries_.back().bytes;
      entries_.pop_back();
    }
    return value;
  }

 private:
  struct Entry {
    std::string key;
    std::shared_ptr<const T> value;
    int64_t bytes = 0;
  };
  std::mutex mutex_;
  std::list<Entry> entries_;  // most recently used first
  int64_t capacity_ = 0, held_ = 0;
};

}  // namespace splash::experiments
