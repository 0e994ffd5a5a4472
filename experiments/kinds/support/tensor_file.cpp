#include "experiments/kinds/support/tensor_file.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <span>

#include <fmt/format.h>

#include "core/error.h"
#include "core/fnv1a.h"
#include "core/suggest.h"
#include "core/text_file.h"
#include "experiments/kinds/support/peer_process.h"
#include "experiments/kinds/support/shipped_captures.h"

namespace splash::experiments {
namespace {

namespace fs = std::filesystem;

constexpr const char* kHdf5Ending = ".h5";

bool is_shipped(const std::string& input) {
  return std::ranges::find(shipped_capture_names(), input) != shipped_capture_names().end();
}

// The path of the converted file. Python keeps one per content hash.
std::string converted_file(const std::string& input, const std::string& path) {
  PeerProcess peer("convert_tensors.py", "numpy and h5py");
  const nlohmann::json reply = peer.ask({{"file", path}});
  if (reply.contains("path")) return reply.at("path");
  if (reply.contains("refused")) throw InvalidArgument(reply.at("refused").get<std::string>());
  throw InvalidArgument(fmt::format(
      "{} cannot be converted: {}; or run `python -m splash_attention.captures {} OUT.h5` elsewhere "
      "and give OUT.h5",
      input, reply.at("unavailable").get<std::string>(), input));
}

TensorFile opened(const std::string& input) {
  std::error_code none;
  const std::string path =
      is_shipped(input) ? shipped_capture(input) : fs::absolute(input, none).lexically_normal().string();
  if (!fs::exists(path, none))
    throw InvalidArgument(fmt::format("input is the file {}, and there is none at {}", input, path));
  const std::string hash = file_hash("the input", path);
  const std::string hdf5 = fs::path(path).extension() == kHdf5Ending ? path : converted_file(input, path);
  return {input, hash, hdf5, analysis::read_capture(hdf5)};
}

}  // namespace

const std::vector<std::string>& tensor_file_endings() {
  static const std::vector<std::string> endings{kHdf5Ending, ".npz", ".safetensors", ".pt"};
  return endings;
}

bool names_tensor_file(const std::string& input) {
  return is_shipped(input) || std::ranges::any_of(tensor_file_endings(), [&](const std::string& ending) {
           return input.ends_with(ending);
         });
}

bool is_of_file(const Parameters& p) {
  return names_tensor_file(get_text(p, "input"));
}

bool is_set_to_file(const Parameters& p) {
  const auto found = p.find("input");
  const auto* const input = found == p.end() ? nullptr : std::get_if<std::string>(&found->second);
  return input != nullptr && names_tensor_file(*input);
}

const analysis::CapturedCall& TensorFile::call(int64_t number) const {
  const auto calls = static_cast<int64_t>(capture.calls.size());
  if (number >= 0 && number < calls) return capture.calls[static_cast<size_t>(number)];
  throw InvalidArgument(calls == 1
                            ? fmt::format("call is {}; {} holds one call, 0", number, name)
                            : fmt::format("call is {}; {} holds the calls 0 to {}", number, name, calls - 1));
}

size_t TensorFile::place_of(int64_t layer) const {
  const auto found = std::ranges::find(capture.layers, layer);
  if (found != capture.layers.end()) return static_cast<size_t>(found - capture.layers.begin());
  std::vector<std::string> held;
  for (const int64_t number : capture.layers) held.push_back(std::to_string(number));
  throw InvalidArgument(fmt::format("layer is {}; {} holds the layer{} {}", layer, name,
                                    held.size() == 1 ? "" : "s", list_words(held)));
}

const TensorFile& open_tensor_file(const std::string& input) {
  static std::map<std::string, TensorFile> known;
  const auto found = known.find(input);
  return found != known.end() ? found->second : known.emplace(input, opened(input)).first->second;
}

Tensor<float> first_rows(const Tensor<float>& tensor, int64_t length) {
  if (length == tensor.length()) return tensor;
  Tensor<float> rows(tensor.batch(), tensor.heads(), length, tensor.dim());
  for (int64_t b = 0; b < tensor.batch(); ++b) {
    for (int64_t h = 0; h < tensor.heads(); ++h) rows.matrix(b, h) = tensor.matrix(b, h).topRows(length);
  }
  return rows;
}

std::string file_hash(const std::string& what, const std::string& path) {
  require_regular_file(what, path);
  std::ifstream file(path, std::ios::binary);
  Fnv1a hash;
  std::vector<char> piece(size_t{1} << 20);
  while (file.read(piece.data(), static_cast<std::streamsize>(piece.size())), file.gcount() > 0)
    hash.add(std::as_bytes(std::span(piece).first(static_cast<size_t>(file.gcount()))));
  return fmt::format("{:016x}", hash.value());
}

}  // namespace splash::experiments
