#pragma once
// Choices that were measured to be quickest on a GPU; they replace a rule's choice. `splash tune kernels`
// writes them to a small file, and a process reads it once. All candidates of a choice compute the same.
// Compiles without nvcc.
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
  std::string library{}, gpu{}, driver{}, runtime{};  // measured with; it counts only for the same
  std::string subject{};                              // a rung that chooses, or a part of the flagship
  std::string problem{};                              // tuned_problem
  std::string choice{};                               // a variant's id, or a tuning as text
  double seconds = 0, default_seconds = 0;            // medians per call
  std::string inputs{}, measured{};                   // what was timed; when: "2025-01-31T12:00:00Z"
};

// The key of a choice, as text: shape, element type, mask, normalizer and selection.
std::string tuned_problem(const AttentionSpec& spec, Dtype dtype);

// An entry for this library on the device. The caller fills in the choice, the seconds and the notes.
TunedEntry tuned_entry(const std::string& subject, const AttentionSpec& spec, Dtype dtype,
                       const DeviceInfo& device);

// Whether the entry was measured with this library version, this GPU, its driver and its runtime. A device
// that only a data sheet describes has no driver; for it, any driver and runtime count.
bool counts_on(const TunedEntry& entry, const DeviceInfo& device);

class TunedTable {
 public:
  std::vector<TunedEntry> entries{};

  // The first entry for the subject and problem that counts_on the device; nullptr if there is none.
  const TunedEntry* find(const std::string& subject, const AttentionSpec& spec, Dtype dtype,
                         const DeviceInfo& device) const;
  // Adds the entry, or replaces the one that agrees in library, GPU, driver, runtime, subject and problem.
  void put(TunedEntry entry);
};

// The file's text, and back. parse_tuned takes only the subset of JSON that tuned_text writes. It throws
// InvalidArgument, one sentence, for anything else, so also for strings with escapes. tuned_text throws it
// for strings that are not printable ASCII or hold quotes or backslashes. read_tuned reads at most
// kMostTunedBytes.
inline constexpr int64_t kMostTunedBytes = int64_t{1} << 20;
std::string tuned_text(const TunedTable& table);
TunedTable parse_tuned(const std::string& text);

// The file's path: $SPLASH_TUNED if set, else adaptive-splash/tuned.json in $XDG_CACHE_HOME (if absolute) or
// ~/.cache. Returns "", so that no file is read, if $SPLASH_TUNED is "off" or there is no home.
std::string tuned_path();

// Reads the file at `path`; an empty table if there is none. Throws InvalidArgument for a file that cannot be
// read or is no file of tuned kernels.
TunedTable read_tuned(const std::string& path);

// The cached choice for the problem; nullopt if there is none. The first call reads tuned_path(). If that
// fails, one sentence on stderr says so and the cache stays empty. Thread-safe.
std::optional<std::string> tuned_choice(const std::string& subject, const AttentionSpec& spec, Dtype dtype,
                                        const DeviceInfo& device);
std::size_t tuned_count(const DeviceInfo& device);  // entries that count on it

// Replaces the cached table for this process, for example by what was just measured or by an empty one.
// Returns the previous table.
TunedTable use_tuned(TunedTable table);

// Writes the sentence to stderr, unless this process has written it before.
void tell_once(const std::string& sentence);

}  // namespace splash::gpu
