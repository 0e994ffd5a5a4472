#pragma once
// Reads TOML strictly: every key must be asked for, and every error names file and line. Only .cpp files that
// read TOML include this header, because toml++ is slow to compile.

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

// toml++ 3.3 asserts what a key begins with before it has looked. For "[!]" that assertion is undefined
// behaviour under NDEBUG and an abort without. With the assertion removed, its next lines report the error.
#pragma push_macro("NDEBUG")
#undef NDEBUG
#define TOML_ASSERT(expr) static_cast<void>(0)
// GCC reads and writes floats by <charconv>, too; toml++ 3.3 does not know it yet and would take streams.
#define TOML_FLOAT_CHARCONV 1
#include <toml++/toml.h>
#pragma pop_macro("NDEBUG")

#include "core/error.h"
#include "core/suggest.h"
#include "core/toml_limits.h"

namespace splash {

inline std::string place_of(const std::string& file, const toml::node& node) {
  return fmt::format("{}:{}", file, static_cast<unsigned>(node.source().begin.line));
}

inline toml::table parse_toml(const std::string& text, const std::string& file) {
  require_toml_limits(text, file);
  try {
    return toml::parse(text, file);
  } catch (const toml::parse_error& error) {
    std::string what(error.description());
    for (char& c : what) c = c == '\n' ? ' ' : c;
    throw InvalidArgument(fmt::format("{}:{}: not valid TOML: {}", file,
                                      static_cast<unsigned>(error.source().begin.line), what));
  }
}

// Reads one table. finish() throws if a key was not asked for.
class TomlTable {
 public:
  // `what` names the table in messages: "[fixed]", "[[expect]]".
  TomlTable(const toml::table& table, std::string file, std::string what)
      : table_(table), file_(std::move(file)), what_(std::move(what)) {}

  const toml::node* find(const std::string& key) {
    asked_.insert(key);
    return table_.get(key);
  }

  std::optional<std::string> text(const std::string& key) { return get<std::string>(key, "text"); }
  std::optional<bool> flag(const std::string& key) { return get<bool>(key, "true or false"); }
  std::optional<double> number(const std::string& key) {
    const toml::node* node = find(key);
    if (node == nullptr) return std::nullopt;
    if (!node->is_number()) fail(*node, fmt::format("'{}' must be a number", key));
    return node->value<double>();
  }

  std::string required_text(const std::string& key) {
    const auto value = text(key);
    if (!value) fail(table_, fmt::format("{} lacks '{}'", what_, key));
    return *value;
  }

  // A table, or null if the key is absent.
  const toml::table* table(const std::string& key) {
    const toml::node* node = find(key);
    if (node == nullptr) return nullptr;
    if (!node->is_table()) fail(*node, fmt::format("'{}' must be a table", key));
    return node->as_table();
  }

  // The tables of [[key]]; empty if the key is absent.
  std::vector<const toml::table*> tables(const std::string& key) {
    const toml::node* node = find(key);
    std::vector<const toml::table*> result;
    if (node == nullptr) return result;
    if (!node->is_array_of_tables()) fail(*node, fmt::format("'{}' must be written as [[{}]]", key, key));
    for (const toml::node& element : *node->as_array()) result.push_back(element.as_table());
    return result;
  }

  void finish() const {
    for (const auto& [key, node] : table_) {
      const std::string name(key.str());
      if (asked_.count(name) != 0) continue;
      fail(node, fmt::format("unknown key '{}' in {}{}", name, what_,
                             suggestion(name, std::vector<std::string>(asked_.begin(), asked_.end()))));
    }
  }

  [[noreturn]] void fail(const toml::node& node, const std::string& sentence) const {
    throw InvalidArgument(place_of(file_, node) + ": " + sentence);
  }

  const toml::table& raw() const { return table_; }

 private:
  template <class T>
  std::optional<T> get(const std::string& key, const char* type) {
    const toml::node* node = find(key);
    if (node == nullptr) return std::nullopt;
    auto value = node->value_exact<T>();
    if (!value) fail(*node, fmt::format("'{}' must be {}", key, type));
    return value;
  }

  const toml::table& table_;
  std::string file_, what_;
  std::set<std::string> asked_;
};

}  // namespace splash
