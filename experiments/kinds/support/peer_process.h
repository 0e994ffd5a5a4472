#pragma once
// A peer: a Python process that reads one JSON object per line and answers each with one line.

#include <filesystem>
#include <string>
#include <sys/types.h>

#include <nlohmann/json.hpp>

#include "core/scratch_folder.h"
#include "core/tensor.h"

namespace splash::experiments {

// Raw little-endian float32, as numpy.fromfile reads it. Both throw Error if the disk fails.
void write_tensor(const std::filesystem::path& path, const Tensor<float>& tensor);
void read_tensor(const std::filesystem::path& path, Tensor<float>& tensor);

class PeerProcess {
 public:
  // `script`: a file of experiments/peers, run with $SPLASH_PEER_PYTHON, else $SPLASH_PYTHON, else python3.
  // `packages`: what the script needs; the answer names them if they are missing.
  explicit PeerProcess(const std::string& script, const std::string& packages = "torch and entmax");
  ~PeerProcess();
  PeerProcess(const PeerProcess&) = delete;
  PeerProcess& operator=(const PeerProcess&) = delete;

  // Returns the peer's answer. If Python or a module is missing, now or at an earlier call, that is
  // {"unavailable": why}. Throws Error if the peer ends in another way.
  nlohmann::json ask(const nlohmann::json& request);
  const ScratchFolder& folder() const { return folder_; }  // for tensors; a request names it

 private:
  bool send(const std::string& line) const;
  bool receive(std::string& line);

  ScratchFolder folder_;
  std::string script_, packages_, pending_, unavailable_;
  pid_t child_ = -1;
  int to_child_ = -1, from_child_ = -1;
};

}  // namespace splash::experiments
