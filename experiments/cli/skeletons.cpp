#include "experiments/cli/skeletons.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <map>
#include <regex>

#include <fmt/format.h>

#include "core/error.h"
#include "core/text_file.h"
#include "experiments/claims/claim.h"
#include "experiments/cli/places.h"
#include "experiments/runner/kind.h"
#include "experiments/runner/project_root.h"

namespace splash::cli {
namespace {

namespace fs = std::filesystem;
using experiments::project_root;
using Fields = std::map<std::string, std::string>;

constexpr int64_t kMostBytes = 1 << 20;

// The skeleton's text, with each @FIELD@ replaced.
std::string filled(const std::string& skeleton, const Fields& fields) {
  std::string text =
      read_text_file("the skeleton", project_root() + "/experiments/skeletons/" + skeleton, kMostBytes);
  for (const auto& [field, value] : fields) {
    const std::string mark = "@" + field + "@";
    for (size_t at = text.find(mark); at != std::string::npos; at = text.find(mark, at + value.size()))
      text.replace(at, mark.size(), value);
  }
  return text;
}

void write(const std::string& path, const std::string& text, const char* mode) {
  const std::string full = project_root() + "/" + path;
  std::FILE* const file = std::fopen(full.c_str(), mode);
  if (file == nullptr) throw InvalidArgument(fmt::format("cannot write {} ({})", path, std::strerror(errno)));
  const bool whole = std::fwrite(text.data(), 1, text.size(), file) == text.size();
  if (std::fclose(file) != 0 || !whole)
    throw InvalidArgument(fmt::format("could not write all of {} ({})", path, std::strerror(errno)));
}

// Writes all of the files, or none if one exists already.
std::vector<std::string> write_new(const std::vector<std::pair<std::string, std::string>>& files) {
  std::vector<std::string> paths;
  for (const auto& [path, text] : files) {
    if (fs::exists(fs::symlink_status(project_root() + "/" + path)))
      throw InvalidArgument(fmt::format("{} is there already, and is not overwritten", path));
  }
  for (const auto& [path, text] : files) {
    fs::create_directories(fs::path(project_root() + "/" + path).parent_path());
    write(path, text, "wx");
    paths.push_back(path);
  }
  return paths;
}

std::smatch matched(const std::string& name, const char* pattern, const std::string& allowed) {
  std::smatch parts;
  if (!std::regex_match(name, parts, std::regex(pattern)))
    throw InvalidArgument(fmt::format("the name '{}' cannot be taken; it must be {}", name, allowed));
  return parts;
}

constexpr const char* kKebab = "[a-z][a-z0-9]*(-[a-z0-9]+)*";

std::string snake_case(std::string kebab) {
  std::replace(kebab.begin(), kebab.end(), '-', '_');
  return kebab;
}

std::string camel_case(const std::string& kebab) {
  std::string text;
  bool upper = true;
  for (const char c : kebab) {
    if (c != '-') text += upper && c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
    upper = c == '-';
  }
  return text;
}

// One more than the last rung's number, read from the file names (17_tile_96.cu). Throws if the name is
// taken.
int next_rung(const std::string& ladder, const std::string& name) {
  static const std::regex file_name("([0-9]{1,4})_(.*)\\.cu");
  int next = 0;
  const fs::path folder = project_root() + "/gpu/ladders/" + ladder;
  if (!fs::is_directory(folder)) return next;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string file = entry.path().filename();
    std::smatch parts;
    if (!std::regex_match(file, parts, file_name)) continue;
    if (parts[2] == snake_case(name)) {
      throw InvalidArgument(
          fmt::format("the name '{}' is taken by gpu/ladders/{}/{}; each rung of a ladder has its own", name,
                      ladder, file));
    }
    next = std::max(next, std::stoi(parts[1]) + 1);
  }
  return next;
}

}  // namespace

Skeleton new_rung(const std::string& name) {
  static const std::string pattern = fmt::format("([a-z][a-z0-9]*(?:_[a-z0-9]+)*)/({})", kKebab);
  const std::smatch parts = matched(
      name, pattern.c_str(),
      "LADDER/NAME in small letters and digits, such as wmma/tile-96: a ladder's words are joined by _, "
      "a rung's by -");
  const std::string ladder = parts[1], rung = parts[2];
  if (ladder == "entmax")
    throw InvalidArgument("the ladder 'entmax' is the flagship's, which is no folder of gpu/ladders");
  const int number = next_rung(ladder, rung);
  const Fields fields{{"LADDER", ladder}, {"RUNG", std::to_string(number)}, {"NAME", rung}};
  return {write_new({{fmt::format("gpu/ladders/{}/{}_{}.cu", ladder, number, snake_case(rung)),
                      filled("rung.cu.in", fields)}}),
          fmt::format("say in it what is new and change the kernel; ./splash test -R 'gpu_(variants|counts)' "
                      "checks it without a GPU, gpu_ladder_tests -tc=\"{}: *\" on one",
                      ladder)};
}

Skeleton new_kind(const std::string& name) {
  matched(name, kKebab, "words of small letters and digits joined by -, such as row-support");
  for (const experiments::Kind* kind : experiments::all_kinds()) {
    if (kind->name() == name)
      throw InvalidArgument(
          fmt::format("the name '{}' is taken by a kind that there is; see splash list kinds", name));
  }
  const std::string file = snake_case(name);
  const Fields fields{{"NAME", name}, {"TYPE", camel_case(name)}};
  return {
      write_new(
          {{fmt::format("experiments/kinds/{}.cpp", file), filled("kind.cpp.in", fields)},
           {fmt::format("experiments/tests/kinds_{}_test.cpp", file), filled("kind_test.cpp.in", fields)},
           {fmt::format("experiments/definitions/{}.toml", name), filled("kind.toml.in", fields)}}),
      fmt::format("change what it measures; ./splash run {} runs it, ./splash test -R kinds_tests tests it",
                  name)};
}

Skeleton new_claim(const std::string& name) {
  const std::smatch parts =
      matched(name, "([A-Z][0-9]+)\\.[0-9]+[a-z]?",
              "a capital letter and a number for the source, a point, a number and perhaps "
              "a small letter, such as P5.1a");
  const std::string source = parts[1];
  if (experiments::find_claim(experiments::read_claims(claims_folder()), name) != nullptr)
    throw InvalidArgument(fmt::format("the name '{}' is taken by a claim of data/claims", name));
  std::string text = filled("claim.toml.in", {{"ID", name}});
  std::string next_step = fmt::format(
      "fill in its fields; name {} in an [[expect]] of the experiment that measures it, and ./splash judge "
      "judges it",
      name);
  for (const std::string& path : experiments::definition_files(claims_folder())) {
    const std::string before = read_text_file("the claims", path, kMostBytes);
    const auto claims = experiments::parse_claims(before, path);
    if (std::none_of(claims.begin(), claims.end(),
                     [&](const auto& claim) { return claim.id.starts_with(source + "."); }))
      continue;
    if (!before.ends_with('\n')) text.insert(0, "\n");
    const std::string file = "data/claims/" + fs::path(path).filename().string();
    write(file, text, "a");
    return {{file}, next_step};
  }
  std::string stem = source;
  stem[0] = static_cast<char>(stem[0] - 'A' + 'a');
  return {write_new({{fmt::format("data/claims/{}.toml", stem),
                      fmt::format("# Claims {}: say here whose they are.\n{}", source, text)}}),
          next_step};
}

Skeleton new_machine(const std::string& name) {
  matched(name, kKebab, "words of small letters and digits joined by -, such as h100-sxm");
  const std::string file = fmt::format("data/machines/{}.toml", name);
  return {write_new({{file, filled("machine.toml.in", {{"NAME", name}})}}),
          "fill in what the data sheet prints; until then what reads machines, such as splash what-if and "
          "splash analyze, names the first value that is missing and goes no further"};
}

}  // namespace splash::cli
