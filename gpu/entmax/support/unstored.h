#pragma once
// Which rows forward leaves to backward's dense products though it has their lists. Compiles without nvcc.

#include "core/host_device.h"

namespace splash::gpu::entmax {

// Whether `rows` rows, which together see `keys` keys and have `entries` entries of their supports, cost
// backward less as dense products (backward/dense). Measured on one H200 at d 64, on layers of a converted
// model and Gaussian scores: an entry takes 140 to 260 ps, in columns and rows together, a key on the dense
// way some 2 to 3 (decision 0077). Rows with few entries are stored however few keys they see.
constexpr int kKeysAnEntry = 90, kLeastEntries = 48;
SPLASH_HOST_DEVICE constexpr bool have_many_entries(int rows, int entries) {
  return entries > rows * kLeastEntries;
}
SPLASH_HOST_DEVICE constexpr bool dense_backward_pays(int rows, int entries, int keys) {
  return entries > keys / kKeysAnEntry && have_many_entries(rows, entries);
}

// Whether that is so of enough of a head's rows: the dense kernels pass over all keys however few rows there
// are, and take 0.1 to 0.15 ms for a few of them (8192 keys).
constexpr int kLeastUnstoredShare = 8;  // one in so many
SPLASH_HOST_DEVICE constexpr bool leaves_unstored(int rows, int q_len) {
  return rows >= (q_len + kLeastUnstoredShare - 1) / kLeastUnstoredShare;
}

// Backward computes such rows from tau as a float. It is as precise as stored excesses are up to this |tau|.
constexpr float kMostUnstoredTau = 32;

}  // namespace splash::gpu::entmax
