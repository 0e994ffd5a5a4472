#pragma once
// A process that runs a kernel of others, or its reference: it takes a line of words and answers with a line
// of JSON. The two share memory, which the other cannot shrink. Nothing that it says is believed before it is
// checked.

#include <cstdint>
#include <map>
#include <string>
#include <sys/types.h>
#include <vector>

#include <nlohmann/json.hpp>

#include "core/scratch_folder.h"

namespace splash::experiments {

class WorkerProcess {
 public:
  // Starts `words` with its end of the socket as file descriptor 3 and the shared memory as 4. What it prints
  // goes into a file. `name` stands for it in errors: "the kernel". Throws Error if it cannot be started.
  WorkerProcess(std::string name, const std::vector<std::string>& words,
                const std::map<std::string, std::string>& environment = {});
  ~WorkerProcess();  // ends it
  WorkerProcess(const WorkerProcess&) = delete;
  WorkerProcess& operator=(const WorkerProcess&) = delete;

  // Throws Error if it answers with an error, ends, says what is no JSON object, or says nothing for
  // `timeout` seconds.
  nlohmann::json ask(const std::string& line, double timeout);

  // Gives the shared memory its size, once. Throws Error if the system has no such memory.
  char* share(int64_t bytes);
  char* shared() const { return shared_; }

  double processor_seconds() const;  // that its threads have used; NaN if the system does not tell

 private:
  std::string last_words();  // how it ended, and the last line of its stderr

  ScratchFolder folder_;
  std::string name_, pending_;
  pid_t child_ = -1;
  int socket_ = -1, memory_ = -1;
  char* shared_ = nullptr;
  int64_t shared_bytes_ = 0;
};

}  // namespace splash::experiments
