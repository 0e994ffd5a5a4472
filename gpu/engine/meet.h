#pragma once
// Ranks that meet on the device. Compiles without nvcc.

#include <cstdint>

#include "gpu/engine/exchange.h"

namespace splash::gpu {

struct MeetingPlaces {
  uint32_t* of_rank[Peers::kMostRanks];  // [ranks] each: word r is written by rank r
};

// The stream waits until all ranks have come to their meeting of this number, which rises from 1 on. Throws
// DeviceError.
void enqueue_meeting(const MeetingPlaces& places, int rank, int ranks, uint32_t number, StreamHandle stream);

}  // namespace splash::gpu
