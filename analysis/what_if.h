#pragma once
// Predicts a kernel's time on another problem, with other tiles or on another GPU, from measured cases of it.
//
// time = launches + factor * (sum of the floors of all levels + work on the support) / (share of the waves'
// block slots that are filled)
//
// Floors are those of roofline.h, waves those of occupancy.h. Work on the support is known of kernels that
// tell how many keys a row keeps: reading these keys and values once more through L2, or computing all
// visible pairs once more, whichever takes less. The factor belongs to the kernel: it is that of the measured
// case with the nearest floors, head_dim, blocks and support, because a kernel's losses change slowly with
// its size. Two bounds hold. The time is at least what the busiest level needs, unless that nearest case was
// faster. And more work never takes less time: the prediction is at least the measured time for fewer batch
// entries, heads, queries or keys of the same setting or with narrower rows, and the predicted time for fewer
// batch entries. With other tiles (changes.h) the floors follow the tiles, the rest of the time follows the
// products, and both grow where multiprocessors have no blocks.
//
// The interval comes from the report itself. Each case is predicted from cases of its kernel on other
// problems and compared with its measured time. Kernels with the tiles of a neighbouring rung are predicted
// from that rung on the same problem and compared, too.

#include <optional>
#include <string>
#include <vector>

#include "analysis/roofline.h"

namespace splash::analysis {

struct Prediction {
  double seconds = 0;
  double low = 0, high = 0;  // eight of ten comparisons lay between them
  double factor = 1;         // on the model's base
  std::string from;          // case_id of the measured case that gave the factor
  int held_out = 0;          // comparisons that gave the interval
  bool measured = false;     // an answer of as_measured(): low and high are the median's 95 % interval
};

// A kernel with at least this many held-out cases has an interval of its own. The others use the comparisons
// of all kernels.
constexpr int kOwnInterval = 8;

// A GPU with its measured ceilings.
struct MeasuredGpu {
  Multiprocessors machine;
  std::vector<report::Ceiling> ceilings;
};

// A case, measured or asked about, as the model sees it.
struct ModelPoint {
  KernelCase kernel;
  double launch = 0, base = 0, floor = 0;  // seconds; floor: of the busiest level
};

// The answer for a kernel that was itself measured: its measured time. `measured` must be of the GPU that
// `gpu` describes. Throws as Predictor does.
Prediction as_measured(const KernelCase& measured, const MeasuredGpu& gpu);

class Predictor {
 public:
  // Takes all kernels of a report. Throws ReportError as floors_of does.
  Predictor(const std::vector<KernelCase>& measured, MeasuredGpu gpu);

  // `asked` is a kernel that was not measured; its seconds are not read. If `asked` has other tiles, `uncut`
  // is the same kernel with its own tiles and gives the factor. Throws InvalidArgument if the report has no
  // case of the kernel, or if not one of its blocks fits a multiprocessor.
  Prediction predict(const KernelCase& asked, const MeasuredGpu& there,
                     const KernelCase* uncut = nullptr) const;
  Prediction predict(const KernelCase& asked, const KernelCase* uncut = nullptr) const {
    return predict(asked, gpu_, uncut);
  }

  // Predicts a measured case from cases of its kernel on other problems. Empty if there are none.
  std::optional<Prediction> held_out(const KernelCase& measured) const;

  // Measured time / predicted time. held_out_ratios(): one per case for which held_out() predicts, in the
  // report's order. recut_ratios(): one per pair of neighbouring rungs on one problem with other tiles.
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
