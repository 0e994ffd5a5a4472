#include "core/suggest.h"

#include <algorithm>

#include <fmt/format.h>

namespace splash {

std::size_t edit_distance(std::string_view a, std::string_view b) {
  const std::size_t width = b.size() + 1;
  std::vector<std::size_t> cost((a.size() + 1) * width);
  auto at = [&](std::size_t i, std::size_t j) -> std::size_t& { return cost[i * width + j]; };
  for (std::size_t i = 0; i <= a.size(); ++i) at(i, 0) = i;
  for (std::size_t j = 0; j <= b.size(); ++j) at(0, j) = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t substituted = at(i - 1, j - 1) + (a[i - 1] == b[j - 1] ? 0 : 1);
      at(i, j) = std::min({at(i - 1, j) + 1, at(i, j - 1) + 1, substituted});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) at(i, j) = std::min(at(i, j), at(i - 2, j - 2) + 1);
    }
  }
  return at(a.size(), b.size());
}

std::string nearest(std::string_view word, const std::vector<std::string>& allowed) {
  constexpr std::size_t kLongest = 200;  // of a typed name; the distance costs length squared
  if (word.size() > kLongest) return "";
  std::string best;
  // Up to a third of the word may be wrong, and one letter in any case.
  std::size_t best_distance = std::max<std::size_t>(2, word.size() / 3 + 1) + 1;
  for (const std::string& candidate : allowed) {
    std::size_t distance = edit_distance(word, candidate);
    const bool is_prefix = word.size() >= 3 && candidate.compare(0, word.size(), word) == 0;
    if (is_prefix) distance = std::min<std::size_t>(distance, 1);
    if (distance < best_distance && distance < std::max(word.size(), candidate.size())) {
      best = candidate;
      best_distance = distance;
    }
  }
  return best;
}

std::string suggestion(std::string_view word, const std::vector<std::string>& allowed) {
  const std::string near = nearest(word, allowed);
  if (!near.empty()) return fmt::format("; did you mean '{}'?", near);
  return "; allowed: " + list_words(allowed);
}

std::string list_words(const std::vector<std::string>& words) {
  if (words.empty()) return "none";
  std::string text;
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (i > 0) text += i + 1 == words.size() ? " and " : ", ";
    text += words[i];
  }
  return text;
}

}  // namespace splash
