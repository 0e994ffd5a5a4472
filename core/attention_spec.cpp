#include "core/attention_spec.h"

#include <fmt/format.h>

#include "core/error.h"

namespace splash {

void AttentionSpec::validate() const {
  shape.validate();
  if (!std::isfinite(scale)) throw InvalidArgument("scale is not finite; it must be a finite number");
  if (!(softcap >= 0 && std::isfinite(softcap)))
    throw InvalidArgument(
        fmt::format("softcap is {}; it must be a finite number above 0, or 0 for none", softcap));
  if (!(dropout.rate >= 0 && dropout.rate < 1))
    throw InvalidArgument(fmt::format("dropout is {}; it must be at least 0 and below 1", dropout.rate));
  if (!sinks.empty()) {
    if (static_cast<int64_t>(sinks.size()) != shape.q_heads)
      throw InvalidArgument(
          fmt::format("sinks has {} entries; allowed: {}, one a query head", sinks.size(), shape.q_heads));
    for (const double sink : sinks)
      if (!(sink < std::numeric_limits<double>::infinity()))
        throw InvalidArgument(fmt::format("a sink is {}; it must be a number, or -inf for none", sink));
    if (normalizer.kind != NormalizerKind::entmax)
      throw Unsupported(fmt::format("sinks take the normalizer entmax, not {}", to_string(normalizer.kind)));
    if (selection.kind != SelectionKind::all && selection.kind != SelectionKind::top_k_row)
      throw Unsupported(
          fmt::format("sinks take the selections all and top_k_row, not {}", to_string(selection.kind)));
  }
  normalizer.validate(shape);
  selection.validate(shape);
  mask.validate(shape);
  bias.validate(shape);
  if (bias.any() && mask.cu_seqlens_q != mask.cu_seqlens_k)
    throw Unsupported(
        "a bias of distances takes packed sequences whose queries and keys have the same cu_seqlens");
}

}  // namespace splash
