// The only source that includes git_info.h: a new commit compiles this file again and no other.

#include "git_info.h"

#include "build_info.h"

namespace splash::build {

std::string_view git_commit() {
  return SPLASH_GIT_COMMIT;
}
std::string_view git_state() {
  return SPLASH_GIT_STATE;
}

}  // namespace splash::build
