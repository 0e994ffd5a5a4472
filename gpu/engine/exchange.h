#pragma once
// What GPUs of one host that can read one another's memory give each other: copies on streams of a group,
// with waits between the streams, and meetings of all ranks on the device. The order is the caller's
// (Python's distributed/exchange.py), made once for many calls, to which a call adds addresses. Compiles
// without nvcc.

#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "gpu/engine/memory.h"

namespace splash::gpu {

// Addresses of a call: of the tensors that are filled, of those that are given, and of each rank's staging
// buffer.
using ExchangeAddresses = std::array<std::vector<uintptr_t>, 3>;

// `count` runs of `bytes` each, `apart` bytes from one to the next, from an address of the call on.
struct ExchangePlace {
  int side, index;  // of ExchangeAddresses
  int64_t offset, apart;
};
struct ExchangeCopy {
  ExchangePlace to, from;
  int64_t bytes, count;
};

struct ExchangeStep {
  enum class Kind {
    copy,           // by copy engines, which leave the SMs to kernels
    copy_together,  // by a kernel, which takes the host one call: of this GPU's memory
    wait,           // the stream waits for what `other` has been given so far
    meet,           // the stream waits until all ranks are here
    mark,           // notes how far the stream is
    wait_for_mark,  // the stream waits for the mark of the exchange before
    end,            // the exchange is finished when the stream is here
  };
  Kind kind;
  int stream = 0, other = 0;  // 0: the call's own; else 1 or 2: the group's
  std::vector<ExchangeCopy> copies{};
};

struct Exchange {
  std::vector<ExchangeStep> steps;
};

// How an exchange ends.
class StartedExchange {
 public:
  explicit StartedExchange(std::vector<StreamPoint> ends) : ends_(std::move(ends)) {}
  ~StartedExchange() = default;
  StartedExchange(StartedExchange&&) = default;
  StartedExchange& operator=(StartedExchange&&) = default;
  StartedExchange(const StartedExchange&) = delete;
  StartedExchange& operator=(const StartedExchange&) = delete;
  // The stream waits until all has arrived.
  void finish(StreamHandle stream) const;

 private:
  std::vector<StreamPoint> ends_;
};

// A rank of a group.
class Peers {
 public:
  static constexpr int kMostRanks = 32;

  // flags: of each rank, in its memory, which all can write: [ranks] of 0. `device` is current. Throws
  // DeviceError; InvalidArgument where there are more than kMostRanks.
  Peers(int device, int rank, std::vector<uint32_t*> flags);

  // Enqueues the steps; own: the call's stream; given: where what it gives is there, or null: with all that
  // the stream has so far. A rank that waits for others for more than ten minutes ends with a trap. Throws
  // DeviceError; InvalidArgument where a step names a stream or an address that is not there.
  StartedExchange start(const Exchange& exchange, const ExchangeAddresses& addresses, StreamHandle own,
                        const StreamPoint* given = nullptr);

 private:
  StreamHandle stream_at(int index, StreamHandle own) const;

  int device_, rank_;
  std::vector<uint32_t*> flags_;
  // A meeting of an ordinary priority would wait until all blocks of the kernels that compute have begun.
  std::array<Stream, 2> streams_{Stream(Stream::Priority::highest), Stream(Stream::Priority::highest)};
  StreamPoint passed_, mark_;
  bool marked_ = false;
  uint32_t meetings_ = 0;
};

}  // namespace splash::gpu
