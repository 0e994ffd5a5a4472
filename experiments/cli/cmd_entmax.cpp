// splash entmax: a calculator.

#include <charconv>
#include <cmath>
#include <iostream>
#include <unistd.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/normalizer.h"
#include "cpu_ref/entmax/solver.h"
#include "experiments/cli/command.h"
#include "experiments/cli/console.h"
#include "experiments/runner/case_json.h"

namespace splash::cli {
namespace {

// Parses decimal numbers, and "inf" and "nan" with or without sign. False for anything else.
bool parse_number(const std::string& word, double& value) {
  const char* begin = word.data();
  const char* const end = begin + word.size();
  if (word.size() > 1 && word[0] == '+' && word[1] != '-') ++begin;
  const auto [last, error] = std::from_chars(begin, end, value);
  if (error == std::errc::result_out_of_range)
    throw InvalidArgument(fmt::format("'{}' does not fit a double", word));
  return error == std::errc() && last == end && begin != end;
}

// Separates scores from options before CLI11 parses them, because it takes negative scores for options.
void split_scores(const Words& words, Words& options, Words& scores) {
  double number = 0;
  bool only_scores = false;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    if (!only_scores && (word == "--alpha" || word == "-a" || word == "--solver")) {
      options.push_back(word);
      if (i + 1 < words.size()) options.push_back(words[++i]);
    } else if (!only_scores && word == "--") {
      only_scores = true;
    } else if (only_scores || word.empty() || word[0] != '-' || parse_number(word, number)) {
      scores.push_back(word);
    } else {
      options.push_back(word);
    }
  }
}

std::vector<double> parse_scores(const Words& words) {
  std::vector<double> scores;
  for (const std::string& word : words) {
    double value = 0;
    if (!parse_number(word, value)) throw InvalidArgument(fmt::format("score '{}' is not a number", word));
    if (std::isnan(value) || (std::isinf(value) && value > 0)) {
      throw InvalidArgument(fmt::format("score {} is {}; scores must be finite, or -inf for a masked key",
                                        scores.size(), std::isnan(value) ? "NaN" : "+inf"));
    }
    scores.push_back(value);
  }
  if (scores.empty()) throw InvalidArgument("there are no scores; give them behind the options or on stdin");
  return scores;
}

Words scores_from_stdin() {
  Words words;
  if (isatty(STDIN_FILENO) != 0) return words;
  for (std::string word; std::cin >> word;) words.push_back(word);
  return words;
}

}  // namespace

int cmd_entmax(const Words& words) {
  CLI::App app;
  prepare(app, "entmax",
          "splash entmax --alpha 1.5 1.0 2.0 3.0\n"
          "splash entmax --alpha 2 --json -0.5 0.2 -inf\n"
          "seq 1 100 | splash entmax --solver newton",
          "The exact alpha-entmax of one row of scores: tau, the probabilities and the support.\n"
          "p = [(alpha-1) s - tau]_+^(1/(alpha-1)) with sum p = 1; tau is in units of (alpha-1) s. A score "
          "of -inf is\n"
          "a masked key.");
  std::string solver_name = "bisection", alpha_text = "1.5";
  bool json = false;
  Words unused;
  app.add_option("-a,--alpha", alpha_text, fmt::format("{} to {} (1.5)", kLeastAlpha, kMostAlpha))
      ->type_name("A");
  app.add_option("--solver", solver_name, "who solves for tau; splash list solvers names them (bisection)")
      ->type_name("S");
  app.add_flag("--json", json, "one object: tau, probabilities, support, iterations, residual");
  app.add_option("SCORES", unused, "the scores; read from stdin where none are given");
  Words options, score_words;
  split_scores(words, options, score_words);
  parse(app, options);
  double alpha = 0;
  if (!parse_number(alpha_text, alpha))
    throw InvalidArgument(fmt::format("--alpha takes a number, not '{}'", alpha_text));
  require_entmax_alpha(alpha, "--alpha");
  const cpu_ref::Solver solver = cpu_ref::solver_from_string(solver_name);
  const std::vector<double> scores = parse_scores(score_words.empty() ? scores_from_stdin() : score_words);

  const cpu_ref::EntmaxRow row = cpu_ref::entmax(scores, alpha, solver);
  std::vector<std::size_t> support;
  for (std::size_t i = 0; i < row.probabilities.size(); ++i) {
    if (row.probabilities[i] > 0) support.push_back(i);
  }
  if (json) {
    print_json({{"alpha", alpha},
                {"solver", solver_name},
                {"tau", experiments::plain_number(row.tau)},
                {"probabilities", row.probabilities},
                {"support", support},
                {"iterations", row.iterations},
                {"residual", experiments::plain_number(row.residual)}});
    return kDone;
  }
  print(fmt::format("alpha {}\ntau {}\nsupport {} of {}\niterations {} ({})\nresidual {:.2g}\n\n", alpha,
                    row.tau, support.size(), scores.size(), row.iterations, solver_name, row.residual));
  TextTable table({"key", "score", "probability"});
  for (std::size_t i = 0; i < scores.size(); ++i) {
    const double p = row.probabilities[i];
    table.add({{fmt::format("{}", i)},
               {fmt::format("{}", scores[i])},
               {fmt::format("{:.9g}", p), p > 0 ? Colour::bold : Colour::dim}});
  }
  table.print();
  return kDone;
}

}  // namespace splash::cli
