#include "experiments/foreign/ptx_counting.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <optional>
#include <sstream>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace splash::experiments {
namespace {

using namespace std::string_view_literals;

std::vector<std::string> split(const std::string& text, char at) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, at);) parts.push_back(part);
  return parts;
}

std::string trimmed(const std::string& text) {
  const auto first = text.find_first_not_of(" \t"), last = text.find_last_not_of(" \t\r");
  return first == std::string::npos ? "" : text.substr(first, last - first + 1);
}

// "@%p1 ld.global.v2.f32 %f1, [%rd4+8];"
struct Instruction {
  std::string predicate;          // "@%p1 ", or ""
  std::vector<std::string> name;  // "ld", "global", "v2", "f32"
  std::string base, offset;       // of the first address: "%rd4", "8"
  bool has(std::string_view part) const {
    for (const std::string& word : name) {
      if (word == part) return true;
    }
    return false;
  }
};

Instruction parse_instruction(const std::string& line) {
  Instruction found;
  std::string rest = line;
  if (rest.front() == '@') {
    const auto space = rest.find_first_of(" \t");
    if (space == std::string::npos) return found;
    found.predicate = rest.substr(0, space) + " ";
    rest = trimmed(rest.substr(space));
  }
  found.name = split(rest.substr(0, rest.find_first_of(" \t;")), '.');
  const auto open = rest.find('['), close = rest.find(']');
  if (open != std::string::npos && close != std::string::npos && open < close) {
    const std::string address = rest.substr(open + 1, close - open - 1);
    const auto plus = address.find('+');
    found.base = trimmed(address.substr(0, plus));
    found.offset = plus == std::string::npos ? "0" : trimmed(address.substr(plus + 1));
  }
  return found;
}

// Bytes of an access by one thread: of its type and vector.
int bytes_of(const Instruction& instruction) {
  int bits = 0, elements = 1;
  for (const std::string& word : instruction.name) {
    if (word == "v2" || word == "v4" || word == "v8") {
      elements = word[1] - '0';
    } else if (word.size() >= 2 && word.size() <= 4 && "busf"sv.find(word[0]) != std::string_view::npos &&
               word.find_first_not_of("0123456789", 1) == std::string::npos) {
      bits = std::stoi(word.substr(1));
    }
  }
  return bits * elements / 8;
}

std::string call(const Instruction& of, const char* function, const std::string& first_type,
                 const std::string& set_address, const std::vector<int>& numbers) {
  std::string text = "{\n";
  std::vector<std::string> parameters;
  const auto pass = [&](const std::string& type, const std::string& value) {
    parameters.push_back(fmt::format("splash_{}", parameters.size()));
    text += fmt::format(".param .{} {};\nst.param.{} [{}+0], {};\n", type, parameters.back(), type,
                        parameters.back(), value);
  };
  if (!set_address.empty()) {
    text += fmt::format(".reg .{} %splash_address;\n{}", first_type, set_address);
    pass(first_type, "%splash_address");
  }
  for (const int number : numbers) pass("b32", std::to_string(number));
  return text + fmt::format("{}call {}, ({});\n}}\n", of.predicate, function, fmt::join(parameters, ", "));
}

// The calls for an instruction, or nothing. Notes what is not counted.
std::string calls_for(const Instruction& instruction, CountingPtx& counting) {
  const std::string& operation = instruction.name.empty() ? "" : instruction.name.front();
  if (operation == "cp" || operation == "ldmatrix" || operation == "stmatrix" || operation == "wgmma" ||
      operation == "tcgen05") {
    counting.counts_shared = counting.counts_global = false;
    return "";
  }
  const bool loads = operation == "ld" || operation == "ldu",
             stores = operation == "st" || operation == "red" || operation == "atom";
  if ((!loads && !stores) || instruction.has("param") || instruction.has("local") || instruction.has("const"))
    return "";
  const int bytes = bytes_of(instruction);
  const bool shared = instruction.has("shared") || instruction.has("shared::cta"),
             global = instruction.has("global");
  if (bytes == 0 || instruction.base.empty() || shared == global) {
    counting.counts_shared = counting.counts_global = false;
    return "";
  }
  const std::string& base = instruction.base;
  const bool wide = base.starts_with("%rd");
  if (shared) {
    const std::string address =
        fmt::format("{} %splash_address, {};\nadd.s32 %splash_address, %splash_address, {};\n",
                    wide ? "cvt.u32.u64" : "mov.u32", base, instruction.offset);
    return call(instruction, "splash_bench_shared", "b32", address, {bytes});
  }
  const std::string address =
      fmt::format("mov.u64 %splash_address, {};\nadd.s64 %splash_address, %splash_address, {};\n", base,
                  instruction.offset);
  return call(instruction, "splash_bench_global", "b64", address, {bytes, stores ? 1 : 0});
}

bool is_special(const std::string& operation) {
  constexpr std::array kSpecial{"ex2", "lg2", "rcp", "rsqrt", "sqrt", "sin", "cos", "tanh"};
  return std::find(kSpecial.begin(), kSpecial.end(), operation) != kSpecial.end();
}

// Rewrites the bodies of one text, line by line.
class Rewriter {
 public:
  CountingPtx operator()(const std::string& ptx) && {
    for (const std::string& line : split(ptx, '\n')) take(line);
    for (const std::string& line : lines_) counting_.text += line + "\n";
    return std::move(counting_);
  }

 private:
  void take(const std::string& line) {
    const std::string text = trimmed(line);
    if (line.find(".entry ") != std::string::npos || line.find(".func") != std::string::npos)
      changes_ = line.find("splash_bench") == std::string::npos;
    if (text.starts_with('}') && --depth_ == 0) end_block();
    if (text.starts_with('{') && text.find('}') == std::string::npos) ++depth_;  // not a vector of registers
    if (depth_ == 0 || !changes_ || text.empty()) {
      lines_.push_back(line);
      return;
    }
    if (text.front() == '$' && text.back() == ':') end_block();
    const bool begins = !statement_open_ &&
                        (text.front() == '@' || std::islower(static_cast<unsigned char>(text.front())) != 0);
    if (begins) begin(text);
    lines_.push_back(line);
    if (begins || statement_open_) statement_open_ = text.find(';') == std::string::npos;
    if (begins && ends_block_) end_block();
  }

  void begin(const std::string& text) {
    const Instruction instruction = parse_instruction(text);
    if (instruction.name.empty()) return;
    if (block_at_ < 0) {
      block_at_ = static_cast<int64_t>(lines_.size());
      lines_.emplace_back();
    }
    // What ptxas mostly folds into others is no instruction of its own.
    const bool folded =
        instruction.name.front() == "mov" || instruction.name.front() == "cvta" || instruction.has("param");
    if (!folded) ++instructions_;
    if (is_special(instruction.name.front())) ++special_;
    if (const std::string calls = calls_for(instruction, counting_); !calls.empty()) lines_.push_back(calls);
    const std::string& operation = instruction.name.front();
    ends_block_ = operation == "bra" || operation == "brx" || operation == "ret" || operation == "exit";
  }

  void end_block() {
    if (block_at_ >= 0)
      lines_[static_cast<std::size_t>(block_at_)] =
          call({}, "splash_bench_block", "", "", {instructions_, special_});
    block_at_ = -1;
    instructions_ = special_ = 0;
    ends_block_ = false;
  }

  CountingPtx counting_;
  std::vector<std::string> lines_;
  bool changes_ = false, statement_open_ = false, ends_block_ = false;
  int64_t block_at_ = -1;
  int depth_ = 0, instructions_ = 0, special_ = 0;
};

}  // namespace

CountingPtx with_counting(const std::string& ptx) {
  return Rewriter()(ptx);
}

}  // namespace splash::experiments
