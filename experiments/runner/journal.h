#pragma once
// The results of a run so far: `<report>.journal`, one JSON line per case, each ending in a checksum, written
// after every case. A run that is killed loses only the case that it was evaluating.

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "experiments/runner/kind.h"

namespace splash::experiments {

// The first line: identifies the run.
struct JournalHeader {
  std::string run_id, definitions_hash, profile, shard, started;
};

// One finished case, with what its id was made of. A later run can then say why the entry no longer fits.
struct JournalEntry {
  std::string case_id, experiment, parameters_hash, binary_hash, input_hash;
  double seconds = 0;  // time that the case took
  CaseResult result;
};

struct JournalContents {
  bool has_header = false;
  JournalHeader header;
  std::vector<JournalEntry> entries;
  int64_t damaged_lines = 0;  // in the middle; a torn last line is expected after a kill and not counted
  int64_t whole_bytes = 0;    // length without the torn last line
};

std::string journal_path(const std::string& report_path);

// What a journal's file holds, which another run may be writing. Throws InvalidArgument if it cannot be read.
JournalContents read_journal(const std::string& path);

// Holds the file open and locked, so that no second run writes to the same report.
class Journal {
 public:
  // Opens or creates the file. Throws InvalidArgument if the folder cannot be written, if the path is
  // something other than a file, or if another run holds the lock.
  explicit Journal(std::string path);
  ~Journal();
  Journal(const Journal&) = delete;
  Journal& operator=(const Journal&) = delete;

  bool is_new() const { return is_new_; }  // the file was empty
  JournalContents read();
  void cut(int64_t bytes);  // truncates the file to this length
  void write(const JournalHeader& header);
  // Appends the entry. Its result becomes what a resumed run would read back.
  void write(JournalEntry& entry);
  void remove();  // the run is done

 private:
  bool lock();
  void append(std::string line);
  void sync();
  std::string path_;
  int file_ = -1;
  bool is_new_ = true;
  std::chrono::steady_clock::time_point synced_{};
};

// Seal a line, and open it again; false for a line whose checksum does not match. For Journal and its tests.
std::string seal(const std::string& json_object);
bool unseal(const std::string& line, std::string& json_object);

}  // namespace splash::experiments
