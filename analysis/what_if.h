#pragma once
// How long a kernel would take on another problem, cut into other tiles, or on another GPU, from cases of it
// that were measured.
//
// The model: starting the kernels, and behind that the floors of all levels together, divided by what is left
// of full waves (roofline.h, occupancy.h), times a factor of the kernel's own. The factor is that of the
// measured case that is nearest in its floors, its head_dim and its blocks: what a kernel loses changes with
// its size, and not suddenly. No time is less than the busiest level needs, unless that case's was. More work
// never takes less: no prediction is below what the kernel was measured to take for fewer batch entries,
// heads, queries or keys of the same setting, or is predicted to take for fewer batch entries. Cut into other
// tiles (changes.h), the floors follow the cut; what the time has beyond them follows the products; and both
// stretch where multiprocessors are left without blocks.
//
// How far that is off is learnt from the report itself. Each case is predicted from cases of its kernel on
// other problems, and compared. And kernels are cut into the tiles of a neighbouring rung, and compared with
// that rung on the same problem.

#include <optional>
#include <string>
#include <vector>

#include "analysis/roofline.h"

namespace splash::analysis {

struct Prediction {
  double seconds = 0;
  double low = 0, high = 0;  // eight of ten comparisons lay as close
  double factor = 1;         // of the model's base
  std::string from;          // case_id of the measured case that it is taken from
  int held_out = 0;          // comparisons that the interval is learnt from
  bool measured = false;     // an answer of as_measured(): low and high are the median's 95 % interval
};

// Kernels with at least this many held-out cases have an interval of their own; others share one with all.
constexpr int kOwnInterval = 8;

// A GPU with its measured ceilings.
struct MeasuredGpu {
  Multiprocessors machine;
  std::vector<report::Ceiling> ceilings;
};

// A measured case, or one that is asked about, as the model sees it.
struct ModelPoint {
  KernelCase kernel;
  double launch = 0, base = 0, floor = 0;  // seconds; floor: of the busiest level
};

// The answer where the kernel that is asked about was itself measured: its time, whatever the model says.
// `measured` must be of the GPU that `gpu` describes. Throws as Predictor does.
Prediction as_measured(const KernelCase& measured, const MeasuredGpu& gpu);

class Predictor {
 public:
  // Of all kernels of a report. Throws ReportError as floors_of does.
  Predictor(const std::vector<KernelCase>& measured, MeasuredGpu gpu);

  // `asked`: a kernel that was not measured; its seconds are not read. `uncut`: the same before it was cut
  // otherwise, if it was; the factor is then taken as for that one. Throws InvalidArgument where the report
  // has no case of the kernel, or not one block of it fits.
  Prediction predict(const KernelCase& asked, const MeasuredGpu& there,
                     const KernelCase* uncut = nullptr) const;
  Prediction predict(const KernelCase& asked, const KernelCase* uncut = nullptr) const {
    return predict(asked, gpu_, uncut);
  }

  // A measured case as if it had not been, from cases of its kernel on other problems; none where it has
  // none.
  std::optional<Prediction> held_out(const KernelCase& measured) const;

  // Time measured / time predicted of each case that has others of its kernel on other problems, in the
  // report's order; and of each pair of neighbouring rungs on one problem with other tiles.
  std::vector<double> held_out_ratios() const;
  const std::vector<double>& recut_ratios() const { return recut_; }

 private:
  struct Ratio {
    std::string implementation;
    double value;
  };
  static void add_interval(Prediction& prediction, std::vector<double> ratios);
  std::vector<double> ratios_of(const std::string& implementation) const;
  void compare_cuts();
  double at_least(const ModelPoint& asked, const MeasuredGpu& there, bool held_out) const;

  MeasuredGpu gpu_;
  std::vector<ModelPoint> points_;
  std::vector<Ratio> held_out_;
  std::vector<double> recut_;
};

}  // namespace splash::analysis
