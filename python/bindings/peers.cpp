// Exchanges between the GPUs of a host. Addresses and streams come as integers; distributed/exchange.py makes
// the steps.

#include <algorithm>
#include <array>
#include <nanobind/stl/array.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "core/error.h"
#include "gpu/device.h"
#include "python/bindings/bindings.h"

#if SPLASH_HAVE_CUDA
#include "gpu/cuda_check.h"
#include "gpu/engine/exchange.h"
#endif

namespace splash::python {

#if SPLASH_HAVE_CUDA
namespace {

using namespace gpu;

constexpr std::array kKinds{std::pair{"copy", ExchangeStep::Kind::copy},
                            std::pair{"copy_together", ExchangeStep::Kind::copy_together},
                            std::pair{"wait", ExchangeStep::Kind::wait},
                            std::pair{"meet", ExchangeStep::Kind::meet},
                            std::pair{"mark", ExchangeStep::Kind::mark},
                            std::pair{"wait_for_mark", ExchangeStep::Kind::wait_for_mark},
                            std::pair{"end", ExchangeStep::Kind::end}};

// (side, index, offset, apart)
using GivenPlace = std::array<int64_t, 4>;
// (to, from, bytes, count)
using GivenCopy = std::tuple<GivenPlace, GivenPlace, int64_t, int64_t>;
// (kind, stream, other, copies)
using GivenStep = std::tuple<std::string_view, int, int, std::vector<GivenCopy>>;

ExchangePlace place_of(const GivenPlace& given) {
  return {static_cast<int>(given[0]), static_cast<int>(given[1]), given[2], given[3]};
}

void make_exchange(Exchange* self, const std::vector<GivenStep>& given) {
  Exchange made;
  for (const auto& [name, stream, other, copies] : given) {
    const auto kind = std::ranges::find(kKinds, name, [](const auto& known) { return known.first; });
    if (kind == kKinds.end()) throw InvalidArgument("an exchange has no step '" + std::string(name) + "'");
    ExchangeStep& step = made.steps.emplace_back(ExchangeStep{kind->second, stream, other});
    for (const auto& [to, from, bytes, count] : copies)
      step.copies.push_back({place_of(to), place_of(from), bytes, count});
  }
  new (self) Exchange(std::move(made));
}

void make_peers(Peers* self, int device, int rank, const std::vector<uintptr_t>& flags) {
  const DeviceScope scope(device);
  std::vector<uint32_t*> places;
  for (const uintptr_t address : flags) places.push_back(at<uint32_t>(address));
  new (self) Peers(device, rank, std::move(places));
}

StartedExchange start(Peers& self, const Exchange& exchange, const ExchangeAddresses& addresses,
                      uintptr_t stream, const StreamPoint* given) {
  return self.start(exchange, addresses, at<CUstream_st>(stream), given);
}

}  // namespace
#endif

void bind_peers([[maybe_unused]] nb::module_& module) {
#if SPLASH_HAVE_CUDA
  nb::class_<Exchange>(module, "Exchange").def("__init__", &make_exchange);
  nb::class_<StartedExchange>(module, "StartedExchange")
      .def("finish",
           [](const StartedExchange& self, uintptr_t stream) { self.finish(at<CUstream_st>(stream)); });
  nb::class_<Peers>(module, "Peers")
      .def("__init__", &make_peers)
      .def("start", &start, nb::arg(), nb::arg(), nb::arg(), nb::arg().none(),
           "Of an exchange; addresses of what is filled, given and staged; a stream; where on it what is "
           "given "
           "is there, or None.");
#endif
}

}  // namespace splash::python
