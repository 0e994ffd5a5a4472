#include "analysis/ncu_csv.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "core/error.h"

using namespace splash;
using namespace splash::analysis;
using Rows = std::vector<std::vector<std::string>>;

namespace {

NcuKernel with(const std::string& metric, const std::string& value, const std::string& unit) {
  NcuKernel kernel;
  kernel.metrics[metric] = {{.value = value, .unit = unit, .mark = DecimalMark::point}};
  return kernel;
}

NcuKernel named(const std::string& name) {
  NcuKernel kernel;
  kernel.name = name;
  return kernel;
}

}  // namespace

TEST_CASE("fields in quotes keep commas, newlines and doubled quotes") {
  CHECK(parse_csv("a,b\n1,2\n") == Rows{{"a", "b"}, {"1", "2"}});
  CHECK(parse_csv("\"a \"\"b\"\" c\",\"x,y\",\"two\nlines\"\r\n,\"\",z") ==
        Rows{{"a \"b\" c", "x,y", "two\nlines"}, {"", "", "z"}});
  CHECK(parse_csv("\n\n").empty());
  CHECK(parse_csv("5\" pipe,b") == Rows{{"5\" pipe", "b"}});  // a quote inside a field is a letter
}

TEST_CASE("the raw page of a profiled kernel is read, units scaled") {
  const NcuResults results = read_ncu(SPLASH_SOURCE_DIR "/analysis/tests/data/ncu-raw.csv");
  REQUIRE(results.kernels.size() == 1);
  const NcuKernel& kernel = results.kernels[0];
  CHECK(kernel.function() == "forward_kernel");
  CHECK(kernel.blocks == 2048);
  CHECK(kernel.threads == 256);
  CHECK(kernel.get("dram__bytes_read.sum", Quantity::bytes) == doctest::Approx(355391488));
  CHECK(kernel.get("gpu__time_duration.sum", Quantity::seconds) == doctest::Approx(985.184e-6));
  CHECK(kernel.get("launch__grid_size", Quantity::count) == 2048);  // "2,048"
  CHECK(kernel.get("launch__shared_mem_per_block_dynamic", Quantity::bytes) == doctest::Approx(115712));
  CHECK(kernel.get("sm__warps_active.avg.pct_of_peak_sustained_active", Quantity::share) ==
        doctest::Approx(0.24104391));
  CHECK_FALSE(kernel.get("sass__inst_executed_register_spilling_mem_local", Quantity::count));  // "no data"
  CHECK_FALSE(kernel.get("dram__bytes.sum", Quantity::bytes));
}

TEST_CASE("a row a metric: kernels by id, rules and what the program prints left out") {
  const std::string text =
      "==PROF== Connected to process 7\n"
      "forward, \"quoted\"\n"
      "\"ID\",\"Process ID\",\"Kernel Name\",\"Block Size\",\"Grid Size\",\"Metric Name\",\"Metric Unit\","
      "\"Metric Value\",\"Rule Description\"\n"
      "\"0\",\"7\",\"a(int)\",\"(16, 8, 1)\",\"(4, 2, "
      "3)\",\"dram__bytes_read.sum\",\"Kbyte\",\"1,234.50\",\"\"\n"
      "\"0\",\"7\",\"a(int)\",\"(16, 8, 1)\",\"(4, 2, 3)\",\"\",\"\",\"\",\"a rule,\nof \"\"two\"\" lines\"\n"
      "\"1\",\"7\",\"b(int)\",\"(32, 1, 1)\",\"(9, 1, 1)\",\"dram__bytes_read.sum\",\"byte\",\"64\",\"\"\n"
      "==PROF== Disconnected from process 7\n";
  const NcuResults results = parse_ncu(text);
  REQUIRE(results.kernels.size() == 2);
  CHECK(results.kernels[0].function() == "a");
  CHECK(results.kernels[0].blocks == 24);
  CHECK(results.kernels[0].threads == 128);
  CHECK(results.kernels[0].metrics.size() == 1);
  CHECK(results.kernels[0].get("dram__bytes_read.sum", Quantity::bytes) == doctest::Approx(1234500));
  CHECK(results.kernels[1].get("dram__bytes_read.sum", Quantity::bytes) == 64);
}

TEST_CASE("without columns of the launch, its metrics tell it") {
  const NcuResults results = parse_ncu(
      "ID,Kernel Name,Metric Name,Metric Unit,Metric Value\n"
      "0,k,Grid Size,,\"1,056\"\n"
      "0,k,launch__block_size,,128\n");
  REQUIRE(results.kernels.size() == 1);
  CHECK(results.kernels[0].blocks == 1056);
  CHECK(results.kernels[0].threads == 128);
}

TEST_CASE("every scaled unit is taken back to its base") {
  const auto get = [](const char* value, const char* unit, Quantity quantity) {
    return with("m", value, unit).get("m", quantity).value();
  };
  CHECK(get("2", "Tbyte", Quantity::bytes) == 2e12);
  CHECK(get("2", "Gbyte", Quantity::bytes) == 2e9);
  CHECK(get("2", "Kbyte/block", Quantity::bytes) == 2e3);
  CHECK(get("3", "Msector", Quantity::sectors) == 3e6);
  CHECK(get("3", "", Quantity::sectors) == 3);
  CHECK(get("3", "Kinst", Quantity::count) == 3e3);
  CHECK(get("168", "register/thread", Quantity::count) == 168);
  CHECK(get("1.5", "ms", Quantity::seconds) == doctest::Approx(1.5e-3));
  CHECK(get("1.5", "usecond", Quantity::seconds) == doctest::Approx(1.5e-6));
  CHECK(get("1,500", "ns", Quantity::seconds) == doctest::Approx(1.5e-6));
  CHECK(get("1.5", "second", Quantity::seconds) == 1.5);
  CHECK(get("50", "%", Quantity::share) == 0.5);
}

TEST_CASE("a unit or a value that is none is refused, none at all is missing") {
  CHECK_THROWS_WITH_AS(
      with("dram__bytes_read.sum", "1", "furlong").get("dram__bytes_read.sum", Quantity::bytes),
      "the metric dram__bytes_read.sum comes in the unit 'furlong', which is none of byte to Tbyte",
      InvalidArgument);
  CHECK_THROWS_AS(with("m", "1", "").get("m", Quantity::bytes), InvalidArgument);  // bytes at which scale?
  CHECK_THROWS_AS(with("m", "1", "Mbyte/s").get("m", Quantity::bytes), InvalidArgument);
  CHECK_THROWS_AS(with("m", "1", "Kus").get("m", Quantity::count), InvalidArgument);
  CHECK_THROWS_WITH_AS(with("m", "PolicySpread", "").get("m", Quantity::count),
                       "the value 'PolicySpread' of the metric m is no number", InvalidArgument);
  for (const char* none : {"", "n/a", "N/A", "no data", "nan", "-nan", "NaN", "-", "none", "#N/A"}) {
    CAPTURE(none);
    CHECK_FALSE(with("m", none, "byte").get("m", Quantity::bytes));
  }
}

TEST_CASE("a kernel's function is its name without types, scopes and arguments") {
  CHECK(named("void dense<__nv_bfloat16, (int)1>(a::P, CUtensorMap_st)").function() == "dense");
  CHECK(named("<unnamed>::gather_rows(Problem, int)").function() == "gather_rows");
  CHECK(named("void (anonymous namespace)::gather_rows(Problem, int)").function() == "gather_rows");
  CHECK(named("void a::B<c::D<1>, 2>::run<E<3>>(int)").function() == "run");
  CHECK(named("plain").function() == "plain");
}

TEST_CASE("unnamed namespaces are told from template arguments, however a profiler writes them") {
  for (const std::string result : {"", "void "}) {
    for (const std::string scope : {"", "a::b::", "<unnamed>::", "unnamed>::", "(anonymous namespace)::",
                                    "a::<unnamed>::", "a::unnamed>::", "unnamed>::B<unnamed>::C, 2>::"}) {
      for (const std::string types : {"", "<__nv_bfloat16, 64>", "<(int)64>", "<unnamed>::Loads>",
                                      "<<unnamed>::Loads<1>>", "<(anonymous namespace)::Loads>",
                                      "<float, unnamed>::Loads, 2>", "<a::unnamed>::A<1>, (bool)0>"}) {
        const std::string name = result + scope + "kernel_1" + types + "(unnamed>::Problem, T1 *)";
        CAPTURE(name);
        CHECK(named(name).function() == "kernel_1");
      }
    }
  }
}

TEST_CASE("what is no table is refused; a profiler that may not look is quoted") {
  const NcuResults refused = parse_ncu(
      "==PROF== Connected\n==ERROR== ERR_NVGPUCTRPERM - The user does not have permission\n==PROF== Bye\n");
  CHECK(refused.kernels.empty());
  CHECK(refused.refusal == "ERR_NVGPUCTRPERM - The user does not have permission");
  CHECK(parse_ncu("==PROF== Connected\n==WARNING== No kernels were profiled.\n").refusal ==
        "No kernels were profiled.");
  CHECK_THROWS_WITH_AS(parse_ncu("hello\n"),
                       "there is no table of ncu --csv in it: no line names its columns, \"ID\" and \"Kernel "
                       "Name\" among them",
                       InvalidArgument);
  CHECK_THROWS_WITH_AS(parse_ncu("\"ID\",\"Kernel Name\",\"m\"\n\"\",\"\",\"byte\"\n"),
                       "the table of ncu --csv holds no kernel", InvalidArgument);
  CHECK_THROWS_WITH_AS(read_ncu("nowhere.csv"),
                       "cannot read ncu's table nowhere.csv: No such file or directory", InvalidArgument);
}

TEST_CASE("a comma is what the whole table makes of it") {
  const auto table = [](const std::vector<std::pair<std::string, std::string>>& values) {  // unit, value
    std::string names = "\"ID\",\"Process ID\",\"CC\"", units = "\"\",\"\",\"\"",
                row = "\"0\",\"12345\",\"9.0\"";
    for (std::size_t i = 0; i < values.size(); ++i) {
      names += fmt::format(",\"m{}.{}\"", i, values[i].first == "%" ? "avg" : "sum");
      units += ",\"" + values[i].first + "\"";
      row += ",\"" + values[i].second + "\"";
    }
    return names + "\n" + units + "\n" + row + "\n";
  };
  const auto first = [&](const std::vector<std::pair<std::string, std::string>>& values) {
    return parse_ncu(table(values)).kernels.at(0).get("m0.sum", Quantity::bytes).value();
  };
  CHECK(first({{"Mbyte", "2.42"}}) == doctest::Approx(2.42e6));
  CHECK(first({{"Mbyte", "2,42"}}) == doctest::Approx(2.42e6));
  CHECK(first({{"Mbyte", "2,418"}, {"%", "12.5"}}) == 2418e6);
  CHECK(first({{"Mbyte", "2,418"}, {"%", "12,5"}}) == doctest::Approx(2.418e6));
  CHECK(first({{"Mbyte", "2.418"}, {"%", "12,5"}}) == 2418e6);
  CHECK(first({{"Mbyte", "1.234.567,5"}}) == 1234567.5e6);
  CHECK(first({{"Mbyte", "1,234,567.5"}}) == 1234567.5e6);
  CHECK(first({{"Mbyte", "0,123"}}) == doctest::Approx(0.123e6));
  CHECK(first({{"Mbyte", "2,418"}, {"byte", "1,024"}}) == 2418e6);  // a count is whole
  CHECK(first({{"Mbyte", "2,418"}, {"byte", "1.024"}}) == doctest::Approx(2.418e6));
  CHECK(first({{"Mbyte", "985.184"}, {"byte", "2048"}}) ==
        doctest::Approx(985.184e6));  // thousands are not separated
  CHECK(first({{"Mbyte", "985,184"}, {"byte", "2048"}}) == doctest::Approx(985.184e6));
  CHECK(first({{"byte", "1.5e+3"}}) == 1500);

  CHECK_THROWS_WITH_AS(
      first({{"Mbyte", "2,418"}, {"byte", "128"}}),
      "'2,418' may be 2418 or 2.418, and no value of the table tells which its ',' means; run ncu "
      "with LC_ALL=C",
      InvalidArgument);
  CHECK_THROWS_WITH_AS(
      first({{"Mbyte", "2,42"}, {"%", "12.5"}}),
      "the table writes both '2,42' and '12.5', so its commas and points can't be told apart; run "
      "ncu with LC_ALL=C",
      InvalidArgument);
  CHECK_THROWS_WITH_AS(first({{"Mbyte", "12,34.5"}, {"%", "12.5"}}), doctest::Contains("is no number"),
                       InvalidArgument);
  for (const char* none : {"inf", "1e999", "1.2.3.4", ".", ",", "1,"}) {
    CAPTURE(none);
    CHECK_THROWS_AS(first({{"byte", none}, {"%", "12.5"}}), InvalidArgument);
  }
}

TEST_CASE("launches beyond what is counted are not told") {
  const NcuResults results = parse_ncu(
      "ID,Kernel Name,Block Size,Grid Size,Metric Name,Metric Unit,Metric Value\n"
      "0,k,\"(4294967296, 4294967296, 4294967296)\",\"(3000000000, 4000000000, "
      "1)\",launch__grid_size,,1e300\n"
      "0,k,\"(4294967296, 4294967296, 4294967296)\",\"(3000000000, 4000000000, "
      "1)\",launch__block_size,,3000000000\n");
  CHECK(results.kernels.at(0).blocks == 0);
  CHECK(results.kernels.at(0).threads == 0);
}
