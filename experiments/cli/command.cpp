#include "experiments/cli/command.h"

#include <algorithm>
#include <cstdlib>

#include <fmt/format.h>

#include "core/suggest.h"
#include "experiments/cli/console.h"

namespace splash::cli {
namespace {

std::string typed;

// CLI11 names the unexpected word; the nearest known option is found here.
std::string sentence_for_extras(const CLI::App& app, const Words& words) {
  std::vector<std::string> known;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) known.push_back("--" + name);
  }
  for (const std::string& word : words) {
    const std::string name = word.substr(0, word.find('='));
    if (name.rfind("--", 0) != 0 || std::find(known.begin(), known.end(), name) != known.end()) continue;
    return fmt::format("unknown option {}{}", name, suggestion(name, known));
  }
  Words left = app.remaining();
  return fmt::format("did not expect {}", fmt::join(left, " "));
}

std::string without_folders(const std::string& word) {
  const std::size_t path = word.starts_with('/') ? 0 : word.find("=/");
  return path == std::string::npos
             ? word
             : word.substr(0, path > 0 ? path + 1 : 0) + word.substr(word.rfind('/') + 1);
}

}  // namespace

void prepare(CLI::App& app, const std::string& name, const std::string& examples, const std::string& what) {
  app.name("splash " + name);
  std::string indented = "  ";
  for (const char c : examples) indented += c == '\n' ? "\n  " : std::string(1, c);
  app.description(fmt::format("Examples:\n{}\n\n{}", indented, what));
  app.allow_extras();  // reported by parse(), with a suggestion
  app.get_formatter()->column_width(28);
}

void parse(CLI::App& app, const Words& words) {
  Words reversed(words.rbegin(), words.rend());  // CLI11 expects this order
  try {
    app.parse(reversed);
  } catch (const CLI::CallForHelp&) {
    print(app.help());
    throw EndNow{kDone};
  } catch (const CLI::ParseError& error) {
    if (!app.remaining().empty()) throw InvalidArgument(sentence_for_extras(app, words));
    std::string what = error.what();
    std::replace(what.begin(), what.end(), '\n', ' ');
    throw InvalidArgument(fmt::format("{}; see {} --help", what, app.get_name()));
  }
  if (!app.remaining().empty()) throw InvalidArgument(sentence_for_extras(app, words));
}

bool front_door_builds_cuda() {
  return std::getenv("SPLASH_CUDA_BY") != nullptr;
}

const std::string& command_line() {
  return typed;
}

void set_command_line(int count, const char* const* words) {
  Words said(words + std::min(1, count), words + count);
  for (std::string& word : said) word = without_folders(word);
  typed = said.empty() ? "splash" : "splash " + quoted(said);
}

std::string quoted(const Words& words) {
  std::string text;
  for (const std::string& word : words) {
    const bool plain = !word.empty() && word.find_first_not_of(
                                            "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                            "0123456789_-+=./:,@%") == std::string::npos;
    std::string safe = word;
    for (std::size_t at = 0; !plain && (at = safe.find('\'', at)) != std::string::npos; at += 4) {
      safe.replace(at, 1, "'\\''");
    }
    text += (text.empty() ? "" : " ") + (plain ? word : "'" + safe + "'");
  }
  return text;
}

}  // namespace splash::cli
