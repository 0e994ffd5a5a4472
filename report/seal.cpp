#include "report/seal.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <span>
#include <string_view>

#include <fmt/format.h>

#include "core/error.h"
#include "core/fnv1a.h"

namespace splash::report {
namespace {

constexpr std::string_view kMarker = "\nsplash-report fnv1a64 ";
constexpr size_t kLength = kMarker.size() + 16 + 1;  // marker, hash, line end

std::string seal_with(const Fnv1a& hash) {
  return fmt::format("{}{:016x}\n", kMarker, hash.value());
}

}  // namespace

void add_seal(std::vector<std::byte>& content) {
  const std::string seal = seal_with(Fnv1a().add(content));
  const std::span<const std::byte> bytes = std::as_bytes(std::span(seal));
  content.insert(content.end(), bytes.begin(), bytes.end());
}

std::vector<std::byte> bytes_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::error_code error;
  std::vector<std::byte> bytes(std::filesystem::file_size(path, error));
  if (error ||
      !file.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()))) {
    throw ReportError(fmt::format("{}: cannot be read", path));
  }
  return bytes;
}

Seal check_seal(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return Seal::absent;
  const uintmax_t size = std::filesystem::file_size(path, error);
  std::ifstream file(path, std::ios::binary);
  if (error || !file || size < kLength) return Seal::absent;

  std::string found(kLength, '\0');
  file.seekg(static_cast<std::streamoff>(size - kLength));
  file.read(found.data(), static_cast<std::streamsize>(kLength));
  if (!file || !found.starts_with(kMarker)) return Seal::absent;

  file.seekg(0);
  Fnv1a hash;
  std::vector<std::byte> piece(size_t{1} << 20);
  for (uintmax_t left = size - kLength; left > 0;) {
    const size_t length = static_cast<size_t>(std::min<uintmax_t>(left, piece.size()));
    if (!file.read(reinterpret_cast<char*>(piece.data()), static_cast<std::streamsize>(length)))
      return Seal::broken;
    hash.add(std::span(piece).first(length));
    left -= length;
  }
  return found == seal_with(hash) ? Seal::intact : Seal::broken;
}

}  // namespace splash::report
