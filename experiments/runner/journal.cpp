#include "experiments/runner/journal.h"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/text_file.h"
#include "experiments/runner/case_json.h"
#include "experiments/runner/hash.h"

namespace splash::experiments {
namespace {

using nlohmann::json;
// A sealed line is the JSON object with one more key at its end: ,"checksum":"0123456789abcdef"}
constexpr std::string_view kSealStart = R"(,"checksum":")";
constexpr std::size_t kSealLength = kSealStart.size() + 16 + 2;

json to_json(const JournalHeader& header) {
  return {{"journal", 1},
          {"run_id", header.run_id},
          {"definitions_hash", header.definitions_hash},
          {"profile", header.profile},
          {"shard", header.shard},
          {"started", header.started}};
}

JournalHeader header_from(const json& source) {
  return {source.at("run_id"), source.at("definitions_hash"), source.at("profile"), source.at("shard"),
          source.at("started")};
}

JournalEntry entry_from(const json& source) {
  JournalEntry entry;
  source.at("case_id").get_to(entry.case_id);
  source.at("experiment").get_to(entry.experiment);
  source.at("parameters_hash").get_to(entry.parameters_hash);
  source.at("binary_hash").get_to(entry.binary_hash);
  source.at("input_hash").get_to(entry.input_hash);
  source.at("seconds").get_to(entry.seconds);
  entry.result = case_result_from_json(source.at("result"));
  return entry;
}

std::string error_text() {
  return std::strerror(errno);
}

JournalContents parsed_journal(const std::string& text) {
  JournalContents contents;
  std::size_t begin = 0;
  for (std::size_t end = 0; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1) {
    std::string object;
    bool whole = unseal(text.substr(begin, end - begin), object);
    try {
      if (whole && begin == 0) {
        contents.header = header_from(json::parse(object));
        contents.has_header = true;
      } else if (whole) {
        contents.entries.push_back(entry_from(json::parse(object)));
      }
    } catch (const json::exception&) {
      whole = false;  // another version of this program wrote it
    }
    if (!whole) ++contents.damaged_lines;
  }
  contents.whole_bytes = static_cast<int64_t>(begin);
  return contents;
}

}  // namespace

std::string seal(const std::string& json_object) {
  const std::string body = json_object.substr(0, json_object.size() - 1);
  return fmt::format("{}{}{}\"}}", body, kSealStart, hash_of(body));
}

bool unseal(const std::string& line, std::string& json_object) {
  if (line.size() <= kSealLength) return false;
  const std::string body = line.substr(0, line.size() - kSealLength);
  if (line != seal(body + "}")) return false;
  json_object = body + "}";
  return true;
}

std::string journal_path(const std::string& report_path) {
  return report_path + ".journal";
}

JournalContents read_journal(const std::string& path) {
  constexpr int64_t kMostBytes = 1LL << 40;
  return parsed_journal(read_text_file("the journal", path, kMostBytes));
}

Journal::Journal(std::string path) : path_(std::move(path)) {
  do {
    if (file_ >= 0) close(file_);
    file_ = open(path_.c_str(), O_RDWR | O_CREAT | O_APPEND | O_NONBLOCK | O_CLOEXEC, 0666);
  } while (file_ >= 0 && !lock());
  if (file_ < 0) {
    throw InvalidArgument(
        fmt::format("cannot write {}: {}; choose another place with --out", path_, error_text()));
  }
}

// Returns false if the run that held the lock until now removed the file.
bool Journal::lock() {
  const auto refuse = [&](const std::string& why) {
    close(file_);
    throw InvalidArgument(why);
  };
  struct stat opened {
  }, named{};
  fstat(file_, &opened);
  if (!S_ISREG(opened.st_mode)) refuse(fmt::format("cannot write {}: it is not a regular file", path_));
  if (flock(file_, LOCK_EX | LOCK_NB) != 0)
    refuse(fmt::format("another run is writing this report (it holds {})", path_));
  fstat(file_, &opened);
  is_new_ = opened.st_size == 0;
  return stat(path_.c_str(), &named) == 0 && named.st_dev == opened.st_dev && named.st_ino == opened.st_ino;
}

Journal::~Journal() {
  close(file_);
}

JournalContents Journal::read() {
  std::string text;
  std::vector<char> piece(1 << 16);
  lseek(file_, 0, SEEK_SET);
  for (ssize_t count = 0; (count = ::read(file_, piece.data(), piece.size())) != 0;) {
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw InvalidArgument(fmt::format("cannot read {}: {}", path_, error_text()));
    text.append(piece.data(), static_cast<std::size_t>(count));
  }
  return parsed_journal(text);
}

void Journal::cut(int64_t bytes) {
  if (ftruncate(file_, bytes) != 0)
    throw InvalidArgument(fmt::format("cannot cut {}: {}", path_, error_text()));
}

void Journal::append(std::string line) {
  line += '\n';
  for (std::size_t written = 0; written < line.size();) {
    const ssize_t count = ::write(file_, line.data() + written, line.size() - written);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw ReportError(fmt::format("cannot write {}: {}", path_, error_text()));
    written += static_cast<std::size_t>(count);
  }
  // A written line survives this process; only a crash of the machine needs the sync. A sync takes a disk
  // milliseconds, which thousands of short cases would wait for.
  if (std::chrono::steady_clock::now() - synced_ > std::chrono::milliseconds(100)) sync();
}

void Journal::sync() {
  if (fdatasync(file_) != 0 && errno != EINVAL) {  // EINVAL: this file cannot be synced
    throw ReportError(fmt::format("cannot write {} to disk: {}", path_, error_text()));
  }
  synced_ = std::chrono::steady_clock::now();
}

void Journal::write(const JournalHeader& header) {
  append(seal(to_json(header).dump()));
}

void Journal::write(JournalEntry& entry) {
  const json object = {{"case_id", entry.case_id},
                       {"experiment", entry.experiment},
                       {"parameters_hash", entry.parameters_hash},
                       {"binary_hash", entry.binary_hash},
                       {"input_hash", entry.input_hash},
                       {"seconds", entry.seconds},
                       {"result", experiments::to_json(entry.result)}};
  const std::string text = object.dump(-1, ' ', false, json::error_handler_t::replace);
  append(seal(text));
  // A resumed run and an undisturbed one must build their reports from the very same values.
  entry.result = entry_from(json::parse(text)).result;
}

void Journal::remove() {
  unlink(path_.c_str());
}

}  // namespace splash::experiments
