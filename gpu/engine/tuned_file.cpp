// The file of tuned kernels: JSON of flat objects whose strings have no escapes. That keeps the reader short
// enough for the library to have its own.

#include <charconv>
#include <cmath>
#include <string_view>

#include <fmt/format.h>

#include "core/error.h"
#include "gpu/engine/tuned.h"

namespace splash::gpu {
namespace {

constexpr std::string_view kFormat = "adaptive-splash tuned kernels 1";
constexpr std::size_t kMostEntries = 10000, kMostText = 400;

struct TextField {
  std::string_view name;
  std::string TunedEntry::*value;
};
constexpr TextField kTexts[] = {{"library", &TunedEntry::library},  {"gpu", &TunedEntry::gpu},
                                {"driver", &TunedEntry::driver},    {"runtime", &TunedEntry::runtime},
                                {"subject", &TunedEntry::subject},  {"problem", &TunedEntry::problem},
                                {"choice", &TunedEntry::choice},    {"inputs", &TunedEntry::inputs},
                                {"measured", &TunedEntry::measured}};
struct NumberField {
  std::string_view name;
  double TunedEntry::*value;
};
constexpr NumberField kNumbers[] = {{"seconds", &TunedEntry::seconds},
                                    {"default_seconds", &TunedEntry::default_seconds}};

bool is_plain(char c) {
  return c >= ' ' && c <= '~' && c != '"' && c != '\\';
}

std::string in_quotes(const std::string& text) {
  for (const char c : text) {
    if (!is_plain(c))
      throw InvalidArgument("a file of tuned kernels holds printable ASCII without quotes and backslashes");
  }
  return "\"" + text + "\"";
}

class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}

  // The next character that is no white space, not consumed; '\0' at the end.
  char peek() {
    while (at_ < text_.size() && std::string_view(" \t\r\n").find(text_[at_]) != std::string_view::npos)
      ++at_;
    return at_ < text_.size() ? text_[at_] : '\0';
  }
  bool take(char c) {
    if (peek() != c) return false;
    ++at_;
    return true;
  }
  void expect(char c) {
    if (!take(c)) fail(fmt::format("expected '{}'", c));
  }
  std::string text() {
    expect('"');
    const std::size_t first = at_;
    while (at_ < text_.size() && is_plain(text_[at_])) ++at_;
    if (at_ >= text_.size() || text_[at_] != '"')
      fail("expected printable ASCII without escapes and a quote");
    if (at_ - first > kMostText) fail(fmt::format("a text has more than {} characters", kMostText));
    return std::string(text_.substr(first, at_++ - first));
  }
  double number() {
    peek();
    double value = 0;
    const auto read = std::from_chars(text_.data() + at_, text_.data() + text_.size(), value);
    if (read.ec != std::errc() || !std::isfinite(value)) fail("expected a number");
    at_ = static_cast<std::size_t>(read.ptr - text_.data());
    return value;
  }
  [[noreturn]] void fail(const std::string& why) const {
    throw InvalidArgument(fmt::format("{} at character {}", why, at_));
  }

 private:
  std::string_view text_;
  std::size_t at_ = 0;
};

void read_field(Reader& reader, const std::string& name, TunedEntry& entry) {
  for (const TextField& field : kTexts) {
    if (field.name == name) {
      entry.*field.value = reader.text();
      return;
    }
  }
  for (const NumberField& field : kNumbers) {
    if (field.name == name) {
      entry.*field.value = reader.number();
      return;
    }
  }
  reader.fail(fmt::format("there is no field '{}'", name));
}

TunedEntry read_entry(Reader& reader) {
  TunedEntry entry;
  reader.expect('{');
  do {
    const std::string name = reader.text();
    reader.expect(':');
    read_field(reader, name, entry);
  } while (reader.take(','));
  reader.expect('}');
  return entry;
}

}  // namespace

std::string tuned_text(const TunedTable& table) {
  std::string text = fmt::format("{{\"format\": \"{}\",\n \"entries\": [", kFormat);
  const char* before = "\n  {";
  for (const TunedEntry& entry : table.entries) {
    text += before;
    for (const TextField& field : kTexts)
      text += fmt::format("\"{}\": {},\n   ", field.name, in_quotes(entry.*field.value));
    const char* separator = "";
    for (const NumberField& field : kNumbers) {
      text += fmt::format("{}\"{}\": {}", separator, field.name, entry.*field.value);
      separator = ", ";
    }
    text += '}';
    before = ",\n  {";
  }
  return text + "]}\n";
}

TunedTable parse_tuned(const std::string& text) {
  Reader reader(text);
  const auto expect_name = [&](const char* name) {
    if (reader.text() != name) reader.fail(fmt::format("expected \"{}\" before", name));
    reader.expect(':');
  };
  TunedTable table;
  reader.expect('{');
  expect_name("format");
  if (const std::string format = reader.text(); format != kFormat)
    throw InvalidArgument(fmt::format("its format is '{}'; this program reads '{}'", format, kFormat));
  reader.expect(',');
  expect_name("entries");
  reader.expect('[');
  if (!reader.take(']')) {
    do {
      if (table.entries.size() >= kMostEntries)
        reader.fail(fmt::format("there are more than {} entries", kMostEntries));
      table.entries.push_back(read_entry(reader));
    } while (reader.take(','));
    reader.expect(']');
  }
  reader.expect('}');
  if (reader.peek() != '\0') reader.fail("expected the end");
  return table;
}

}  // namespace splash::gpu
