#include "cpu_ref/ceilings/caches.h"

#include <algorithm>
#include <fstream>
#include <string>

namespace splash::cpu_ref {

Caches caches() {
  constexpr int kMostIndices = 16;
  Caches found;
  int last_level = 0;
  for (int index = 0; index < kMostIndices; ++index) {
    const std::string folder = "/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(index) + "/";
    std::ifstream level_file(folder + "level"), type_file(folder + "type"), size_file(folder + "size");
    int level = 0;
    std::string type;
    int64_t size = 0;
    char unit = ' ';
    if (!(level_file >> level) || !(type_file >> type) || !(size_file >> size)) continue;
    if (type == "Instruction" || size < 0) continue;
    if (size_file >> unit) size *= unit == 'K' ? 1 << 10 : unit == 'M' ? 1 << 20 : 1;
    if (level == 1) found.l1 = size;
    if (level == 2) found.l2 = size;
    if (level < last_level) continue;
    last_level = level;
    found.last = size;
  }
  return found;
}

}  // namespace splash::cpu_ref
