#pragma once
// What a store (store.h) begins with, and how a forward writes it. Compiles without nvcc.

#include <cstdint>

namespace splash::gpu::entmax {

struct StoreHeader {
  uint64_t problem = 0;  // store_key of what forward computed
  int64_t capacity = 0;
  unsigned long long used =
      0;  // entries that forward wanted to store; more than capacity: some rows are not stored
};

// A header that a kernel of forward writes before the support: then no kernel before it has to. Null: none.
struct StoreBegin {
  StoreHeader* header = nullptr;
  StoreHeader value{};
};

}  // namespace splash::gpu::entmax
