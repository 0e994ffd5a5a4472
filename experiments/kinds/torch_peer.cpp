#include "experiments/kinds/torch_peer.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/error.h"

namespace splash::experiments {
namespace {

namespace fs = std::filesystem;

// A folder that goes away with its owner.
class ScratchFolder {
 public:
  ScratchFolder() {
    std::string name = (fs::temp_directory_path() / "splash-peer-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr)
      throw Error(fmt::format("cannot make a folder in {}", fs::temp_directory_path().string()));
    path_ = name;
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  ~ScratchFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  fs::path operator/(const std::string& name) const { return path_ / name; }
  std::string string() const { return path_.string(); }

 private:
  fs::path path_;
};

std::streamsize bytes_of(const Tensor<float>& t) {
  return static_cast<std::streamsize>(t.size() * sizeof(float));
}

void write_tensor(const fs::path& path, const Tensor<float>& tensor) {
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(tensor.data()), bytes_of(tensor));
  if (!file.flush()) throw Error(fmt::format("cannot write {}; is the disk full?", path.string()));
}

std::string read_text(const fs::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string python() {
  for (const char* name : {"SPLASH_PEER_PYTHON", "SPLASH_PYTHON"}) {
    const char* value = std::getenv(name);
    if (value != nullptr && *value != '\0') return value;
  }
  return "python3";
}

std::string quoted(const std::string& text) {
  std::string result = "'";
  for (const char c : text) result += c == '\'' ? "'\\''" : std::string(1, c);
  return result + "'";
}

std::string last_line(const std::string& text) {
  const auto end = text.find_last_not_of('\n');
  if (end == std::string::npos) return "it said nothing";
  const auto begin = text.find_last_of('\n', end);
  return text.substr(begin == std::string::npos ? 0 : begin + 1, end - begin);
}

}  // namespace

PeerResult run_torch_peer(const PeerJob& job, const AttentionInputs<float>& inputs,
                          const Tensor<float>& dout) {
  const ScratchFolder folder;
  write_tensor(folder / "q.f32", inputs.q);
  write_tensor(folder / "k.f32", inputs.k);
  write_tensor(folder / "v.f32", inputs.v);
  write_tensor(folder / "dout.f32", dout);
  const nlohmann::json request{{"implementation", job.implementation},
                               {"backward", job.backward},
                               {"causal", job.causal},
                               {"n", inputs.q.length()},
                               {"heads", inputs.q.heads()},
                               {"head_dim", inputs.q.dim()},
                               {"threads", job.threads},
                               {"samples", job.samples},
                               {"folder", folder.string()}};
  std::ofstream(folder / "job.json") << request;
  const std::string script = (fs::path(SPLASH_SOURCE_DIR) / "experiments/peers/torch_attention.py").string();
  const std::string command = fmt::format(
      "{} {} < {} > {} 2> {}", quoted(python()), quoted(script), quoted((folder / "job.json").string()),
      quoted((folder / "reply").string()), quoted((folder / "errors").string()));
  const int status = std::system(command.c_str());
  PeerResult result;
  if (status != 0) {
    const std::string errors = last_line(read_text(folder / "errors"));
    const bool missing = errors.find("ModuleNotFoundError") != std::string::npos ||
                         errors.find("not found") != std::string::npos;
    if (!missing) throw Error(fmt::format("the peer {} failed: {}", job.implementation, errors));
    result.unavailable =
        fmt::format("{} (set SPLASH_PEER_PYTHON to a Python that has torch and entmax)", errors);
    return result;
  }
  const auto reply = nlohmann::json::parse(read_text(folder / "reply"));
  result.version = reply.at("version");
  result.seconds = reply.at("seconds").get<std::vector<double>>();
  result.peak_memory_bytes = reply.at("peak_memory_bytes");
  result.out = Tensor<float>(inputs.q.batch(), inputs.q.heads(), inputs.q.length(), inputs.q.dim());
  std::ifstream out(folder / "out.f32", std::ios::binary);
  out.read(reinterpret_cast<char*>(result.out.data()), bytes_of(result.out));
  if (!out) throw Error(fmt::format("the peer {} left no whole output", job.implementation));
  return result;
}

}  // namespace splash::experiments
