#include "gpu/engine/tuned.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <set>
#include <sys/stat.h>
#include <utility>

#include <fmt/format.h>

#include "core/error.h"
#include "core/text.h"
#include "core/text_file.h"

namespace splash::gpu {
namespace {

std::string mask_words(const Mask& mask) {
  std::string words = mask.causal ? "causal" : "";
  const auto add = [&](const char* word) { words += (words.empty() ? "" : " and ") + std::string(word); };
  if (mask.window > 0) words += fmt::format(" window {}", mask.window);
  if (!mask.q_positions.empty()) add("positions");
  if (!mask.cu_seqlens_q.empty()) add("packed");
  return words.empty() ? "no mask" : words;
}

std::string normalizer_words(const Normalizer& normalizer) {
  std::string kind(to_string(normalizer.kind));
  const auto& alpha = normalizer.alpha;
  if (normalizer.kind == NormalizerKind::softmax || alpha.empty()) return kind;
  const bool one = std::all_of(alpha.begin(), alpha.end(), [&](double a) { return a == alpha.front(); });
  return one ? fmt::format("{} {:.6g}", kind, alpha.front()) : kind + " of several alphas";
}

std::string selection_words(const Selection& selection) {
  std::string kind(to_string(selection.kind));
  switch (selection.kind) {
    case SelectionKind::top_k_row:
      return fmt::format("{} {}", kind, selection.k_keep);
    case SelectionKind::top_k_block:
    case SelectionKind::shared_keys:
      return fmt::format("{} {} {}", kind, selection.k_keep, selection.block);
    default:
      return kind;
  }
}

// The table that this process uses.
struct Cached {
  std::mutex mutex;
  bool is_read = false;
  TunedTable table;

  // With the mutex held.
  const TunedTable& get() {
    if (is_read) return table;
    is_read = true;
    const std::string path = tuned_path();
    if (path.empty()) return table;
    try {
      table = read_tuned(path);
    } catch (const Error& error) {
      tell_once(fmt::format("nothing tuned is used: {}", error.what()));
    }
    return table;
  }
};

Cached& cached() {
  static Cached of_process;
  return of_process;
}

}  // namespace

std::string tuned_problem(const AttentionSpec& spec, Dtype dtype) {
  const AttentionShape& s = spec.shape;
  return fmt::format("{}x{}x{}x{}x{}x{}, {}, {}, {}, {}", s.batch, s.q_heads, s.kv_heads, s.q_len, s.kv_len,
                     s.head_dim, to_string(dtype), mask_words(spec.mask), normalizer_words(spec.normalizer),
                     selection_words(spec.selection));
}

TunedEntry tuned_entry(const std::string& subject, const AttentionSpec& spec, Dtype dtype,
                       const DeviceInfo& device) {
  TunedEntry entry;
  entry.library = SPLASH_VERSION;
  entry.gpu = device.name;
  entry.driver = device.driver_version;
  entry.runtime = device.runtime_version;
  entry.subject = subject;
  entry.problem = tuned_problem(spec, dtype);
  return entry;
}

bool counts_on(const TunedEntry& entry, const DeviceInfo& device) {
  const bool described = device.driver_version.empty();
  return entry.library == SPLASH_VERSION && entry.gpu == device.name &&
         (described || (entry.driver == device.driver_version && entry.runtime == device.runtime_version));
}

const TunedEntry* TunedTable::find(const std::string& subject, const AttentionSpec& spec, Dtype dtype,
                                   const DeviceInfo& device) const {
  if (entries.empty()) return nullptr;
  const std::string problem = tuned_problem(spec, dtype);
  for (const TunedEntry& entry : entries) {
    if (entry.subject == subject && entry.problem == problem && counts_on(entry, device)) return &entry;
  }
  return nullptr;
}

void TunedTable::put(TunedEntry entry) {
  const auto same = [&](const TunedEntry& other) {
    return other.library == entry.library && other.gpu == entry.gpu && other.driver == entry.driver &&
           other.runtime == entry.runtime && other.subject == entry.subject && other.problem == entry.problem;
  };
  const auto found = std::ranges::find_if(entries, same);
  if (found == entries.end()) {
    entries.push_back(std::move(entry));
  } else {
    *found = std::move(entry);
  }
}

std::string tuned_path() {
  const auto variable = [](const char* name) {
    const char* const value = std::getenv(name);
    return std::string(value == nullptr ? "" : value);
  };
  if (const std::string named = variable("SPLASH_TUNED"); !named.empty()) return named == "off" ? "" : named;
  if (const std::string cache = variable("XDG_CACHE_HOME"); cache.starts_with('/'))
    return cache + "/adaptive-splash/tuned.json";
  const std::string home = variable("HOME");
  return home.empty() ? "" : home + "/.cache/adaptive-splash/tuned.json";
}

TunedTable read_tuned(const std::string& path) {
  struct stat status {};
  if (stat(path.c_str(), &status) != 0 && errno == ENOENT) return {};
  const std::string text = read_text_file("the tuned kernels", path, kMostTunedBytes);
  try {
    return parse_tuned(text);
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(fmt::format("{} is no file of tuned kernels: {}", path, error.what()));
  }
}

std::optional<std::string> tuned_choice(const std::string& subject, const AttentionSpec& spec, Dtype dtype,
                                        const DeviceInfo& device) {
  Cached& of_process = cached();
  const std::scoped_lock lock(of_process.mutex);
  const TunedEntry* const entry = of_process.get().find(subject, spec, dtype, device);
  return entry == nullptr ? std::nullopt : std::optional(entry->choice);
}

std::size_t tuned_count(const DeviceInfo& device) {
  Cached& of_process = cached();
  const std::scoped_lock lock(of_process.mutex);
  const auto& entries = of_process.get().entries;
  return static_cast<std::size_t>(
      std::ranges::count_if(entries, [&](const TunedEntry& entry) { return counts_on(entry, device); }));
}

TunedTable use_tuned(TunedTable table) {
  Cached& of_process = cached();
  const std::scoped_lock lock(of_process.mutex);
  static_cast<void>(of_process.get());  // reads the file now, so that no later read overwrites `table`
  return std::exchange(of_process.table, std::move(table));
}

void tell_once(const std::string& sentence) {
  static std::mutex mutex;
  static std::set<std::string> told;
  const std::scoped_lock lock(mutex);
  if (!told.insert(sentence).second) return;
  std::fputs(("splash: " + one_line(sentence) + "\n").c_str(), stderr);
}

}  // namespace splash::gpu
