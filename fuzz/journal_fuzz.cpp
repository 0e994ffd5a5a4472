// Journals of interrupted runs: any lines are cases or damage. Lines get the checksum that fits them, which
// the fuzzer would not find.

#include "core/error.h"
#include "experiments/runner/journal.h"
#include "fuzz/target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace splash;
  using namespace splash::experiments;
  static fuzz::InputFile file;
  const std::string text(reinterpret_cast<const char*>(data), size);
  std::string sealed;
  for (size_t begin = 0, end = 0; begin < text.size(); begin = end + 1) {
    end = std::min(text.find('\n', begin), text.size());
    const std::string line = text.substr(begin, end - begin);
    sealed += (line.empty() || line.back() != '}' ? line : seal(line)) + "\n";
  }
  fuzz::expect<InvalidArgument, ReportError>([&] {
    Journal journal(file.hold(reinterpret_cast<const uint8_t*>(sealed.data()), sealed.size()));
    JournalContents contents = journal.read();
    for (JournalEntry& entry : contents.entries) journal.write(entry);
  });
  return 0;
}
