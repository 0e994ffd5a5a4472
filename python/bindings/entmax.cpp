// entmax of a matrix's rows.

#include <span>

#include "core/normalizer.h"
#include "core/shape.h"
#include "cpu_ref/entmax/rows.h"
#include "python/bindings/bindings.h"

namespace splash::python {
namespace {

template <class T>
using Matrix = nb::ndarray<const T, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Alphas = nb::ndarray<const double, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

template <class Array>
auto span_of(const Array& array) {
  return std::span(array.data(), array.size());
}

template <class T>
std::vector<int64_t> shape_of(const Matrix<T>& matrix) {
  return {static_cast<int64_t>(matrix.shape(0)), static_cast<int64_t>(matrix.shape(1))};
}

template <class T>
nb::object entmax_of(const Matrix<T>& scores, const Alphas& alpha) {
  std::vector<T> p(scores.size());
  {
    const nb::gil_scoped_release release;
    cpu_ref::entmax_rows<T>(span_of(scores), span_of(alpha), scores.shape(0), p);
  }
  return to_numpy(std::move(p), shape_of<T>(scores));
}

template <class T>
nb::tuple gradient_of(const Matrix<T>& p, const Matrix<T>& d_p, const Alphas& alpha) {
  std::vector<T> d_scores(p.size());
  std::vector<double> d_alpha(p.shape(0));
  {
    const nb::gil_scoped_release release;
    cpu_ref::entmax_rows_gradient<T>(span_of(p), span_of(d_p), span_of(alpha), p.shape(0), d_scores, d_alpha);
  }
  return nb::make_tuple(to_numpy(std::move(d_scores), shape_of<T>(p)),
                        to_numpy(std::move(d_alpha), {static_cast<int64_t>(p.shape(0))}));
}

template <class T>
void bind_entmax_of(nb::module_& module) {
  module.def("entmax", &entmax_of<T>, nb::arg("scores").noconvert(), nb::arg("alpha").noconvert());
  module.def("entmax_gradient", &gradient_of<T>, nb::arg("p").noconvert(), nb::arg("d_p").noconvert(),
             nb::arg("alpha").noconvert());
}

}  // namespace

void bind_entmax(nb::module_& module) {
  module.def(
      "check_alpha", [](double alpha) { Normalizer{.alpha = {alpha}}.validate({}); }, nb::arg("alpha"),
      "Raises ValueError for an alpha that entmax does not take.");
  bind_entmax_of<float>(module);
  bind_entmax_of<double>(module);
  module.attr("LEAST_ALPHA") = kLeastAlpha;
  module.attr("MOST_ALPHA") = kMostAlpha;
}

}  // namespace splash::python
