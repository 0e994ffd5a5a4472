#include "gpu/engine/exchange.h"

#include <utility>

#include "core/error.h"
#include "gpu/cuda_check.h"
#include "gpu/engine/meet.h"
#include "gpu/engine/runs.h"

namespace splash::gpu {
namespace {

std::vector<Runs> runs_of(const std::vector<ExchangeCopy>& copies, const ExchangeAddresses& addresses) {
  const auto at = [&](const ExchangePlace& place) {
    return reinterpret_cast<void*>(
        addresses.at(static_cast<size_t>(place.side)).at(static_cast<size_t>(place.index)) +
        static_cast<uintptr_t>(place.offset));
  };
  std::vector<Runs> all;
  all.reserve(copies.size());
  for (const ExchangeCopy& one : copies)
    all.push_back({at(one.to), one.to.apart, at(one.from), one.from.apart, one.bytes, one.count});
  return all;
}

}  // namespace

void StartedExchange::finish(StreamHandle stream) const {
  for (const StreamPoint& end : ends_) end.await(stream);
}

Peers::Peers(int device, int rank, std::vector<uint32_t*> flags)
    : device_(device), rank_(rank), flags_(std::move(flags)) {
  if (flags_.size() > kMostRanks)
    throw InvalidArgument("a group has " + std::to_string(flags_.size()) + " ranks; " +
                          std::to_string(kMostRanks) + " can share memory");
}

StreamHandle Peers::stream_at(int index, StreamHandle own) const {
  if (index == 0) return own;
  if (index < 0 || static_cast<size_t>(index) > streams_.size())
    throw InvalidArgument("an exchange names stream " + std::to_string(index) + " of " +
                          std::to_string(streams_.size()));
  return streams_[static_cast<size_t>(index) - 1].handle();
}

StartedExchange Peers::start(const Exchange& exchange, const ExchangeAddresses& addresses, StreamHandle own,
                             const StreamPoint* given) {
  const DeviceScope scope(device_);
  std::vector<StreamPoint> ends;
  for (const ExchangeStep& step : exchange.steps) {
    const StreamHandle stream = stream_at(step.stream, own);
    switch (step.kind) {
      case ExchangeStep::Kind::copy:
        copy_runs(runs_of(step.copies, addresses), stream);
        break;
      case ExchangeStep::Kind::copy_together:
        copy_runs_together(runs_of(step.copies, addresses), stream);
        break;
      case ExchangeStep::Kind::wait:
        if (step.other == 0 && given != nullptr) {
          given->await(stream);
          break;
        }
        passed_.record(stream_at(step.other, own));
        passed_.await(stream);
        break;
      case ExchangeStep::Kind::meet: {
        MeetingPlaces places{};
        for (size_t i = 0; i < flags_.size(); ++i) places.of_rank[i] = flags_[i];
        enqueue_meeting(places, rank_, static_cast<int>(flags_.size()), ++meetings_, stream);
        break;
      }
      case ExchangeStep::Kind::mark:
        mark_.record(stream);
        marked_ = true;
        break;
      case ExchangeStep::Kind::wait_for_mark:
        if (marked_) mark_.await(stream);
        break;
      case ExchangeStep::Kind::end:
        ends.emplace_back().record(stream);
        break;
    }
  }
  return StartedExchange(std::move(ends));
}

}  // namespace splash::gpu
