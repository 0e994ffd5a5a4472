// Tables as ncu, shells and spreadsheets write them: every way of writing one table gives the same launches,
// or a refusal that says why.

#include <numeric>
#include <random>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "analysis/ncu_csv.h"
#include "analysis/tests/example_kernels.h"
#include "analysis/tests/example_tables.h"

using namespace splash;
using namespace splash::analysis;
using namespace splash::analysis::testing;

namespace {

// Everything that a table tells, in one text.
std::string told(const std::string& bytes) {
  std::string text;
  for (const NcuKernel& kernel : parse_ncu(bytes).kernels) {
    text += fmt::format("{} {} {} {} {}\n", kernel.process, kernel.id.value_or(-1), kernel.name,
                        kernel.blocks, kernel.threads);
    for (const auto& [name, entries] : kernel.metrics) {
      for (const Quantity quantity : {Quantity::bytes, Quantity::seconds, Quantity::share, Quantity::count,
                                      Quantity::bytes_per_second, Quantity::per_second}) {
        if (const auto value = kernel.get_if_fits(name, quantity))
          text += fmt::format("  {} {:.9g}\n", name, *value);
      }
    }
  }
  return text;
}

std::vector<PrintedLaunch> launches_of(const std::vector<Printed>& metrics) {
  std::vector<PrintedLaunch> launches;
  for (const char* process : {"99", "4711"}) {
    for (const char* id : {"0", "2", "10"}) {
      launches.push_back({.id = id, .process = process, .metrics = metrics});
      launches.back().grid = fmt::format("({}, 1, 1)", 100 + launches.size());
    }
  }
  return launches;
}

Table shuffled(Table table, unsigned seed, bool rows) {
  std::mt19937 random(seed);
  if (rows) {
    std::shuffle(table.begin() + 1, table.end(), random);
    return table;
  }
  std::vector<std::size_t> order(table[0].size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::shuffle(order.begin(), order.end(), random);
  for (auto& row : table) {
    row.resize(order.size());
    const auto before = row;
    for (std::size_t i = 0; i < order.size(); ++i) row[i] = before[order[i]];
  }
  return table;
}

std::string utf16(const std::string& latin, bool little, bool marked) {
  std::string bytes = !marked ? "" : little ? "\xFF\xFE" : "\xFE\xFF";
  for (const char c : latin) {
    if (!little) bytes += '\0';
    bytes += c;
    if (little) bytes += '\0';
  }
  return bytes;
}

std::string with_commas(std::string text) {  // 1,234.5 is 1.234,5
  for (char& c : text) c = c == ',' ? '.' : c == '.' ? ',' : c;
  return text;
}

std::vector<Printed> decimal_commas(std::vector<Printed> metrics) {
  for (Printed& metric : metrics) metric.value = with_commas(metric.value);
  return metrics;
}

}  // namespace

TEST_CASE("rows and columns of a table of ncu may come in any order") {
  for (const Table& table :
       {details_page(launches_of(streaming_labels())), raw_page(launches_of(streaming_metrics()))}) {
    const std::string expected = told(csv(table));
    REQUIRE(expected.find("99 0 saxpy") < expected.find("99 2 saxpy"));
    REQUIRE(expected.find("99 2 saxpy") < expected.find("99 10 saxpy"));
    REQUIRE(expected.find("99 10 saxpy") < expected.find("4711 0 saxpy"));
    for (unsigned seed = 0; seed < 20; ++seed) {
      CAPTURE(seed);
      CHECK(told(csv(shuffled(table, seed, true))) == expected);
      CHECK(told(csv(shuffled(table, seed, false))) == expected);
      CHECK(told(csv(shuffled(shuffled(table, seed, true), seed, false))) == expected);
    }
  }
}

TEST_CASE("a table of ncu may come in UTF-8 or UTF-16, with a mark or without, between other lines") {
  const std::string table = csv(details_page(launches_of(streaming_labels()))), expected = told(table);
  CHECK(told("\xEF\xBB\xBF" + table) == expected);
  for (const bool little : {true, false}) {
    for (const bool marked : {true, false}) CHECK(told(utf16(table, little, marked)) == expected);
  }
  CHECK(told("==PROF== Connected to process 99\nstep 1, loss 0.5\n\"quoted\", too\n" + table +
             "done, 3 s\n==PROF== Disconnected from process 99\n") == expected);
  std::string crlf;
  for (const char c : table) crlf += c == '\n' ? std::string("\r\n") : std::string(1, c);
  CHECK(told(crlf) == expected);
  CHECK(message_of([&] { parse_ncu("\xFF\xFE" + utf16(table, true, false).substr(0, 1001)); }) ==
        "the text is UTF-16 and ends within a character: the file was cut off");
  CHECK(message_of([&] {
          parse_ncu(table + std::string(1, '\0'));
        }).starts_with("it holds NUL bytes, so it is no text"));
}

TEST_CASE("fields of a table of ncu may be apart by semicolons or tabs, and spreadsheets pad rows") {
  const Table table = details_page(launches_of(streaming_labels()));
  const std::string expected = told(csv(table));
  CHECK(told(csv(table, ";")) == expected);
  CHECK(told("sep=;\n" + csv(table, ";")) == expected);
  CHECK(told(csv(table, "\t")) == expected);
  Table padded = table;
  for (auto& row : padded) row.insert(row.end(), 2, "");
  CHECK(told(csv(padded, ";")) == expected);
}

TEST_CASE("a table with points and its twin with commas tell the same, or the twin is refused") {
  for (const std::vector<Printed>& metrics :
       {streaming_labels(), streaming_metrics(), streaming_labels("1,181.256")}) {
    const std::string expected = told(csv(details_page(launches_of(metrics))));
    CHECK(told(csv(details_page(launches_of(decimal_commas(metrics))))) == expected);
    CHECK(told(csv(details_page(launches_of(decimal_commas(metrics))), ";")) == expected);
  }
  const std::vector<Printed> unclear{{"", "gpu__time_duration.sum", "us", "1.181"},
                                     {"", "launch__grid_size", "", "64"}};
  for (const auto& metrics : {unclear, decimal_commas(unclear)}) {
    CHECK(message_of([&] { told(csv(details_page(launches_of(metrics)))); }).find("run ncu with LC_ALL=C") !=
          std::string::npos);
  }
}

TEST_CASE("spaces between groups of digits are no part of a number") {
  const auto us = [](const std::string& value) {
    const std::string text = csv(
        raw_page({{.metrics = {{"", "gpu__time_duration.sum", "us", value}, {"", "a.avg", "%", "12,5"}}}}));
    return parse_ncu(text).kernels.at(0).get("gpu__time_duration.sum", Quantity::seconds).value();
  };
  CHECK(us("1 234,5") == doctest::Approx(1234.5e-6));
  CHECK(us("1\xE2\x80\xAF"
           "234\xE2\x80\xAF"
           "567,5") == doctest::Approx(1234567.5e-6));  // French: U+202F
  CHECK(us("1\xE2\x80\x99"
           "234,5") == doctest::Approx(1234.5e-6));  // Swiss
  CHECK_THROWS_AS(us("1 23,5"), InvalidArgument);
}

TEST_CASE("marks of doubtful values and instances are taken off, words for none are none") {
  const auto get = [](const std::string& value) {
    const std::string text = csv(raw_page(
        {{.metrics = {{"", "sm__cycles_elapsed.max", "cycle", value}, {"", "a.avg", "%", "12.5"}}}}));
    return parse_ncu(text).kernels.at(0).get("sm__cycles_elapsed.max", Quantity::count);
  };
  CHECK(get("(!) 1,234") == 1234);
  CHECK(get("1,234 (1,000; 234)") == 1234);  // --print-metric-instances values
  CHECK(get("12 (0x7f: 5; 0x8f: 7)") == 12);
  for (const char* none :
       {"(!) nan", "(!) n/a", "n/a", "N/A", "", " ", "no data", "-nan", "(5; 7)", "#N/A", "<null>"}) {
    CAPTURE(none);
    CHECK_FALSE(get(none));
  }
}

TEST_CASE("a metric of two units has two values, and of one unit it may not") {
  const NcuKernel kernel = parse_ncu(csv(details_page({{.metrics = streaming_labels()}}))).kernels.at(0);
  CHECK(kernel.get("Memory Throughput", Quantity::share) == doctest::Approx(0.921));
  CHECK(kernel.get("Memory Throughput", Quantity::bytes_per_second) == doctest::Approx(4.44e12));
  CHECK_THROWS_AS(kernel.get("Duration", Quantity::bytes), InvalidArgument);
  CHECK_FALSE(kernel.get_if_fits("Duration", Quantity::bytes));
  std::vector<Printed> twice = streaming_labels();
  twice.push_back({"", "Duration", "us", "300.00"});
  const NcuKernel doubled = parse_ncu(csv(details_page({{.metrics = twice}}))).kernels.at(0);
  CHECK(message_of([&] { doubled.get("Duration", Quantity::seconds); }) ==
        "the table has two values of the metric Duration for one launch of saxpy, '181.25 us' and '300.00 "
        "us'; several "
        "launches need the column ID");
}

TEST_CASE("a summary tells of all launches at once: least, largest, average") {
  const std::string summary =
      "\"Process ID\",\"Process Name\",\"Host Name\",\"Kernel Name\",\"Block Size\",\"Grid "
      "Size\",\"Device\",\"CC\","
      "\"Invocations\",\"Section Name\",\"Metric Name\",\"Metric Unit\",\"Minimum\",\"Maximum\",\"Average\"\n"
      "\"1\",\"app\",\"127.0.0.1\",\"k(int)\",\"(256, 1, 1)\",\"(4096, 1, "
      "1)\",\"0\",\"9.0\",\"14\",\"S\",\"Duration\","
      "\"us\",\"10.11\",\"1,012.50\",\"11.03\"\n"
      "\"1\",\"app\",\"127.0.0.1\",\"k(int)\",\"(256, 1, 1)\",\"(4096, 1, "
      "1)\",\"0\",\"9.0\",\"14\",\"S\",\"Elapsed "
      "Cycles\",\"cycle\",\"17,001\",\"17,900\",\"17,100.52\"\n";
  const NcuKernel kernel = parse_ncu(summary).kernels.at(0);
  CHECK(kernel.invocations == 14);
  CHECK(kernel.blocks == 4096);
  CHECK(kernel.get("Duration", Quantity::seconds) == doctest::Approx(11.03e-6));
  CHECK(kernel.least("Duration", Quantity::seconds) == doctest::Approx(10.11e-6));
  CHECK(kernel.most("Duration", Quantity::seconds) == doctest::Approx(1012.5e-6));
  CHECK(kernel.get("Elapsed Cycles", Quantity::count) == doctest::Approx(17100.52));
}

TEST_CASE("the details page of 2020 has other names, and tells the launch among the metrics") {
  const std::string launch = "0,28439,app,127.0.0.1,\"step(int,float*)\",2020-May-29 12:02:46,1,7,Section,";
  std::string text =
      "ID,Process ID,Process Name,Host Name,Kernel Name,Kernel Time,Context,Stream,Section Name,Metric Name,"
      "Metric Unit,Metric Value\n";
  for (const char* row : {"SM Frequency,cycle/second,1138271055.75", "Duration,nsecond,8992",
                          "Block Size,,192", "Grid Size,,506"})
    text += launch + row + "\n";
  const NcuKernel kernel = parse_ncu(text).kernels.at(0);
  CHECK(kernel.blocks == 506);
  CHECK(kernel.threads == 192);
  CHECK(kernel.get("Duration", Quantity::seconds) == doctest::Approx(8.992e-6));
  CHECK(kernel.get("SM Frequency", Quantity::per_second) == doctest::Approx(1.13827e9));
}

TEST_CASE("tables one behind the other are read, each by its own header") {
  const std::string text = csv(details_page({{.metrics = streaming_labels()}})) + "==PROF== again\n" +
                           csv(raw_page({{.process = "5000", .metrics = streaming_metrics()}}));
  const std::vector<NcuKernel> kernels = parse_ncu(text).kernels;
  REQUIRE(kernels.size() == 2);
  CHECK(kernels[1].process == "5000");
  CHECK(kernels[1].get("gpu__time_duration.sum", Quantity::seconds) == doctest::Approx(181.25e-6));
}

TEST_CASE("a file that was cut off, or is no table of ncu, is refused with the reason") {
  const std::string table = csv(details_page(launches_of(streaming_labels())));
  const std::string whole = told(table);
  int refused = 0;
  for (std::size_t size = table.size() - 400; size < table.size(); ++size) {  // cut at any place
    std::string rest;
    const std::string message = message_of([&] { rest = told(table.substr(0, size)); });
    CHECK(rest.size() <= whole.size());
    refused += message.find("cut off") != std::string::npos ? 1 : 0;
  }
  CHECK(refused > 300);  // behind a value nothing is missing but what rules say
  CHECK(message_of([] {
          parse_ncu("  saxpy(int) (256, 1, 1)x(4, 1, 1)\n    Section: GPU Speed Of Light Throughput\n");
        }) == "it is what ncu prints for people; print the table with --csv");
  CHECK(message_of([] { parse_ncu("a,b\n1,2\n"); }).find("no line names its columns") != std::string::npos);
  CHECK(message_of([&] { parse_ncu("ID,ID,Kernel Name,m\n0,0,k,1\n"); }) == "the table has two columns 'ID'");
  CHECK(message_of([] { parse_ncu("ID,Kernel Name,m\n0,k,1\n1,k,2,3\n2,k,5\n"); }) ==
        "a row of the table has 4 fields where its header has 3: 1,k,2,3");
}
