// splash plot: hands over to the plots of the Python laboratory.

#include "experiments/cli/command.h"
#include "experiments/cli/places.h"

namespace splash::cli {

int cmd_plot(const Words& words) {
  CLI::App app;
  prepare(
      app, "plot",
      "splash plot report.h5 --out plots\n"
      "splash plot report.h5 --only roofline --format pdf --size 6.5x4 --title 'My kernels'\n"
      "splash plot report.h5 --x kv_len --y time_median --by implementation --where experiment=kascade\n"
      "splash plot --list",
      "Draws every plot whose data the report holds, or, with --x and --y, a column over another: medians "
      "over the\n"
      "cases of a point, with a curve for each value of --by. Prints the paths. Needs the project's Python.");
  std::string report, out, size, title, format, x, y, by;
  Words only, where;
  bool list = false;
  app.add_option("REPORT", report, "an HDF5 report");
  app.add_option("--out", out, "the folder to write into (plots)")->type_name("DIR");
  app.add_option("--only", only, "only this plot; may be repeated")
      ->type_name("NAME")
      ->expected(1)
      ->take_all();
  app.add_flag("--list", list, "name the plots");
  app.add_option("--format", format, "png, svg and pdf, with commas between them (png,svg)")
      ->type_name("A,B");
  app.add_option("--size", size, "of the whole figure in inches")->type_name("WxH");
  app.add_option("--title", title, "in place of the finding on top; '' for none")->type_name("TEXT");
  app.add_option("--x", x, "the column of the horizontal axis")->type_name("COLUMN");
  app.add_option("--y", y, "the column of the vertical axis")->type_name("COLUMN");
  app.add_option("--by", by, "a curve for each value of this column")->type_name("COLUMN");
  app.add_option("--where", where, "only these cases, as for `splash table`")
      ->type_name("NAME=V,V")
      ->expected(1)
      ->take_all();
  parse(app, words);
  if (report.empty() && !list) throw InvalidArgument("a report is needed: splash plot REPORT");
  become_laboratory("plots", words);
}

}  // namespace splash::cli
