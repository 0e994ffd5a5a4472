// splash page: hands over to the page of the Python laboratory.

#include "experiments/cli/command.h"
#include "experiments/cli/places.h"

namespace splash::cli {

int cmd_page(const Words& words) {
  CLI::App app;
  prepare(
      app, "page",
      "splash page report.h5 --out page.html\n"
      "splash page report.h5 --title 'My kernels' --columns implementation,kv_len,time_median\n"
      "splash page after.h5 --beside before.h5\n"
      "splash page report.h5 --recorded data/reports/ladders-h200.h5",
      "Writes a report as one HTML page that needs nothing else, and prints its path. Needs the project's "
      "Python.");
  std::string report, out, title, columns, beside;
  Words recorded;
  app.add_option("REPORT", report, "an HDF5 report")->required();
  app.add_option("--out", out, "the page's file (page.html)")->type_name("PATH");
  app.add_option("--beside", beside,
                 "a run to compare with, as splash compare BEFORE REPORT does: the page begins with what "
                 "changed")
      ->type_name("BEFORE");
  app.add_option("--title", title, "in place of the report's own")->type_name("TEXT");
  app.add_option("--columns", columns, "of the tables of results, in this order (all that vary)")
      ->type_name("A,B");
  app.add_option("--recorded", recorded,
                 "also show the rooflines, or language models, of this report; may be repeated")
      ->type_name("REPORT")
      ->expected(1)
      ->take_all();
  parse(app, words);
  become_laboratory("page", words);
}

}  // namespace splash::cli
