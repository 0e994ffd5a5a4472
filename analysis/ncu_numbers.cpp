#include "analysis/ncu_numbers.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>

#include <fmt/format.h>

#include "analysis/csv_table.h"
#include "core/error.h"

namespace splash::analysis {
namespace {

constexpr std::size_t kGroup = 3, kGroupedFrom = 4;  // digits

// "-1,234.50" as its digits between separators: 1 , 234 . 50
struct DigitGroups {
  std::vector<std::string> digits;
  std::string separators;

  bool grouped() const {  // a first piece of one to three digits that is not "0", then pieces of three
    return digits.front().size() <= kGroup && digits.front() != "0" && !digits.front().empty() &&
           std::all_of(digits.begin() + 1, digits.end(),
                       [](const std::string& piece) { return piece.size() == kGroup; });
  }
};

std::optional<DigitGroups> digits_of(const std::string& text) {
  DigitGroups parts{{""}, ""};
  for (std::size_t at = !text.empty() && text[0] == '-' ? 1 : 0; at < text.size(); ++at) {
    const char c = text[at];
    if (std::isdigit(static_cast<unsigned char>(c)) != 0) {
      parts.digits.back() += c;
    } else if (c == ',' || c == '.') {
      parts.separators += c;
      parts.digits.emplace_back();
    } else {
      return std::nullopt;
    }
  }
  if (parts.digits.front().empty() || parts.digits.back().empty()) return std::nullopt;
  return parts;
}

DecimalMark mark_of(char separator) {
  return separator == '.' ? DecimalMark::point : DecimalMark::comma;
}

DecimalMark other(DecimalMark mark) {
  return mark == DecimalMark::point ? DecimalMark::comma : DecimalMark::point;
}

// The decimal mark that follows from one value alone.
DecimalMark told_by(const DigitGroups& parts, bool whole) {
  const std::string& separators = parts.separators;
  if (separators.empty()) return DecimalMark::unknown;
  if (separators.front() != separators.back()) return mark_of(separators.back());  // 1,234.5
  if (separators.size() > 1) return other(mark_of(separators.front()));            // 1,234,567
  if (!parts.grouped()) return mark_of(separators.front());                        // 2,42
  return whole ? other(mark_of(separators.front())) : DecimalMark::unknown;        // 2,418
}

bool is_well_formed(const DigitGroups& parts, DecimalMark mark) {
  const char decimal = mark == DecimalMark::point ? '.' : ',';
  const auto decimals = std::count(parts.separators.begin(), parts.separators.end(), decimal);
  if (decimals > 1 || (decimals == 1 && parts.separators.back() != decimal)) return false;
  DigitGroups whole = parts;
  if (decimals == 1) whole.digits.pop_back();
  return whole.digits.size() == 1 || whole.grouped();
}

double value_of(const DigitGroups& parts, bool negative, DecimalMark mark) {
  std::string plain = negative ? "-" : "";
  for (std::size_t i = 0; i < parts.digits.size(); ++i) {
    if (i > 0 && mark_of(parts.separators[i - 1]) == mark) plain += '.';
    plain += parts.digits[i];
  }
  double number = 0;
  std::from_chars(plain.data(), plain.data() + plain.size(), number);
  return number;
}

}  // namespace

DecimalMark decimal_mark(const std::vector<NcuText>& values) {
  DecimalMark mark = DecimalMark::unknown;
  std::string witness;
  bool ungrouped = false, comma = false, point = false;  // comma, point: the only separator of some value
  for (const NcuText& value : values) {
    const auto parts = digits_of(value.text);
    if (!parts) continue;
    if (parts->digits.front().size() >= kGroupedFrom) ungrouped = true;  // 2418: thousands are not separated
    comma = comma || parts->separators == ",";
    point = point || parts->separators == ".";
    const DecimalMark told = told_by(*parts, value.whole);
    if (told == DecimalMark::unknown) continue;
    if (mark != DecimalMark::unknown && told != mark) {
      throw InvalidArgument(
          fmt::format("the table writes both '{}' and '{}', so its commas and points can't be "
                      "told apart; run ncu with LC_ALL=C",
                      witness, value.text));
    }
    mark = told;
    witness = value.text;
  }
  if (mark == DecimalMark::unknown && ungrouped && comma != point) {
    return comma ? DecimalMark::comma : DecimalMark::point;
  }
  return mark;
}

std::optional<double> number_from(const std::string& text, DecimalMark mark) {
  const auto parts = digits_of(text);
  if (!parts) {
    // ncu writes the largest numbers with exponents: 1.5e+20. Such a number has no group of three digits.
    double number = 0;
    const auto end = std::from_chars(text.data(), text.data() + text.size(), number);
    const bool whole = end.ec == std::errc() && end.ptr == text.data() + text.size();
    return whole && std::isfinite(number) ? std::optional(number) : std::nullopt;
  }
  if (mark == DecimalMark::unknown && !parts->separators.empty()) {
    const DecimalMark told = told_by(*parts, false);
    if (told == DecimalMark::unknown) {
      throw InvalidArgument(fmt::format(
          "'{}' may be {} or {}, and no value of the table tells which its '{}' means; run ncu with LC_ALL=C",
          text, value_of(*parts, text[0] == '-', DecimalMark::point),
          value_of(*parts, text[0] == '-', DecimalMark::comma), parts->separators));
    }
    mark = told;
  }
  if (!parts->separators.empty() && !is_well_formed(*parts, mark)) return std::nullopt;
  const double number = value_of(*parts, text[0] == '-', mark);
  return std::isfinite(number) ? std::optional(number) : std::nullopt;
}

std::string printed_value(const std::string& text) {
  std::string value = trimmed(text);
  if (value.starts_with("(!)")) value = trimmed(value.substr(3));
  if (const auto instances = value.find(" ("); instances != std::string::npos && value.ends_with(')'))
    value = trimmed(value.substr(0, instances));
  if (value.starts_with('(') && value.ends_with(')') && value.find(';') != std::string::npos)
    return "";  // instances without a value of all
  const auto is_digit = [&](std::size_t at) {
    return at < value.size() && std::isdigit(static_cast<unsigned char>(value[at])) != 0;
  };
  for (const std::string space : {" ", "\xC2\xA0", "\xE2\x80\xAF", "\xE2\x80\x89", "\xE2\x80\x99", "'"}) {
    for (std::size_t at = 0; (at = value.find(space, at)) != std::string::npos;) {
      const std::size_t next = at + space.size();
      const bool groups = at > 0 && is_digit(at - 1) && is_digit(next) && is_digit(next + 1) &&
                          is_digit(next + 2) && !is_digit(next + 3);
      if (groups) {
        value.erase(at, space.size());
      } else {
        at = next;
      }
    }
  }
  return value;
}

bool is_missing(const std::string& text) {
  std::string word;
  for (const char c : text) word += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  constexpr std::array kWords{"",     "n/a",           "na",        "nan",         "-nan",
                              "+nan", "nan(ind)",      "-nan(ind)", "none",        "no data",
                              "null", "missing",       "#n/a",      "unavailable", "-",
                              "--",   "not available", "n.a.",      "undefined",   "<null>"};
  return std::find(kWords.begin(), kWords.end(), word) != kWords.end();
}

}  // namespace splash::analysis
