// splash_attention._core: the C++ library as the Python package calls it. Its callers have checked ranks and
// element types; what the library itself checks arrives as an exception with the library's sentence.

#include "core/error.h"
#include "python/bindings/bindings.h"

namespace splash::python {
namespace {

void translate(const std::exception_ptr& thrown, void*) {
  try {
    std::rethrow_exception(thrown);
  } catch (const InvalidArgument& error) {
    PyErr_SetString(PyExc_ValueError, error.what());
  } catch (const Unsupported& error) {
    PyErr_SetString(PyExc_NotImplementedError, error.what());
  } catch (const Error& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
}

}  // namespace
}  // namespace splash::python

NB_MODULE(_core, module) {
  using namespace splash::python;
  nanobind::set_leak_warnings(false);  // PyTorch's registry holds on to what it was given
  nanobind::register_exception_translator(translate);
  bind_spec(module);
  bind_entmax(module);
  bind_cpu_attention(module);
  bind_cuda(module);
  bind_decode(module);
  bind_kascade(module);
  bind_peers(module);
}
