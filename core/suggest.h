#pragma once
// "Did you mean": finds the nearest of the allowed words.

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace splash {

// The number of insertions, deletions, substitutions and swaps of neighbours (Damerau 1964; optimal string
// alignment). Takes O(|a| |b|).
std::size_t edit_distance(std::string_view a, std::string_view b);

// The nearest of `allowed`, or "" if none is near enough to be meant.
std::string nearest(std::string_view word, const std::vector<std::string>& allowed);

// "; did you mean 'run'?" or, if nothing is near, "; allowed: a, b and c".
std::string suggestion(std::string_view word, const std::vector<std::string>& allowed);

std::string list_words(const std::vector<std::string>& words);  // "a, b and c"; "none" for no words

}  // namespace splash
