#pragma once
// What was measured to be quickest on a GPU, in place of a rule's choice: a small file that `splash tune
// kernels` writes and that a process reads once. What is chosen among computes the same. Compiles without
// nvcc.
//
//   if (const auto choice = tuned_choice("kascade/8-chosen-block", spec, dtype, device)) ...

#include <optional>
#include <string>
#include <vector>

#include "core/attention_spec.h"
#include "core/dtype.h"
#include "gpu/device.h"

namespace splash::gpu {

struct TunedEntry {
  std::string library{}, gpu{}, driver{}, runtime{};  // what it was measured with: else it does not count
  std::string subject{};                              // a rung that chooses, or a part of the flagship
  std::string problem{};                              // tuned_problem
  std::string choice{};                               // a variant's id, or a tuning as text
  double seconds = 0, default_seconds = 0;            // medians of a call
  std::string inputs{}, measured{};                   // what they were; when, "2025-01-31T12:00:00Z"
};

// Shape, element type, mask, normalizer and selection: what a choice is kept under.
std::string tuned_problem(const AttentionSpec& spec, Dtype dtype);

// An entry for this library on the device, the choice still to be filled in.
TunedEntry tuned_entry(const std::string& subject, const AttentionSpec& spec, Dtype dtype,
                       const DeviceInfo& device);

// Whether it is of this library, the GPU and its driver; of a device that only a data sheet describes, which
// has no driver, of any.
bool counts_on(const TunedEntry& entry, const DeviceInfo& device);

class TunedTable {
 public:
  std::vector<TunedEntry> entries{};

  // The one that counts_on the device; nullptr where there is none.
  const TunedEntry* find(const std::string& subject, const AttentionSpec& spec, Dtype dtype,
                         const DeviceInfo& device) const;
  void put(TunedEntry entry);  // in place of one for the same library, GPU, driver, subject and problem
};

// The file's text, and back. Reading takes at most kMostTunedBytes, and of JSON what writing makes: throws
// InvalidArgument, one sentence, for anything else, so also for texts with escapes. Writing throws it for
// texts with quotes, backslashes or control characters.
inline constexpr int64_t kMostTunedBytes = int64_t{1} << 20;
std::string tuned_text(const TunedTable& table);
TunedTable parse_tuned(const std::string& text);

// $SPLASH_TUNED, which "off" makes "": none is read. Else adaptive-splash/tuned.json in $XDG_CACHE_HOME or
// ~/.cache; "" where there is no home.
std::string tuned_path();

// From the path; empty where there is no such file. Throws InvalidArgument for a file that is none of these.
TunedTable read_tuned(const std::string& path);

// What is cached, of tuned_path(), read at the first call; where the file cannot be taken, one sentence on
// stderr and nothing. Threads may call it.
std::optional<std::string> tuned_choice(const std::string& subject, const AttentionSpec& spec, Dtype dtype,
                                        const DeviceInfo& device);
std::size_t tuned_count(const DeviceInfo& device);  // entries that count on it

// In place of what is cached, for this process: what was just measured, or nothing. Returns what it went by.
TunedTable use_tuned(TunedTable table);

// The sentence on stderr, if it was not told before.
void tell_once(const std::string& sentence);

}  // namespace splash::gpu
