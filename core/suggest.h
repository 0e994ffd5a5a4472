#pragma once
// "Did you mean": the nearest of the words that are allowed.

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace splash {

// Insertions, deletions, substitutions and swaps of neighbours, each at cost 1 (Damerau 1964; optimal string
// alignment). Costs O(|a| |b|).
std::size_t edit_distance(std::string_view a, std::string_view b);

// The nearest of `allowed`, or "" where none is near enough to be what was meant.
std::string nearest(std::string_view word, const std::vector<std::string>& allowed);

// "; did you mean 'run'?" or, where nothing is near, "; allowed are a, b and c".
std::string suggestion(std::string_view word, const std::vector<std::string>& allowed);

std::string list_words(const std::vector<std::string>& words);  // "a, b and c"; "none" for no words

}  // namespace splash
