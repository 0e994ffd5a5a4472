# splash_build_info: what was built, from what. Link it to include "build_info.h".
# The commit is asked for at every build (cmake/git_info.cmake, some 30 ms); nothing is compiled again unless it changed.
string(TOUPPER "${CMAKE_BUILD_TYPE}" config)
set(SPLASH_CXX_FLAGS "${CMAKE_CXX_FLAGS} ${CMAKE_CXX_FLAGS_${config}} ${splash_arch}")
if(SPLASH_SANITIZE)
  string(APPEND SPLASH_CXX_FLAGS " -fsanitize=${SPLASH_SANITIZE}")
endif()
string(REGEX REPLACE " +" " " SPLASH_CXX_FLAGS "${SPLASH_CXX_FLAGS}")
string(STRIP "${SPLASH_CXX_FLAGS}" SPLASH_CXX_FLAGS)
set(SPLASH_CUDA_VERSION "")
set(SPLASH_CUDA_ARCHITECTURES "")
if(SPLASH_HAVE_CUDA)
  set(SPLASH_CUDA_VERSION "${CMAKE_CUDA_COMPILER_VERSION}")
  list(JOIN CMAKE_CUDA_ARCHITECTURES ", " SPLASH_CUDA_ARCHITECTURES)
endif()

set(generated ${PROJECT_BINARY_DIR}/generated)
configure_file(${CMAKE_CURRENT_LIST_DIR}/build_info.h.in ${generated}/build_info.h @ONLY)

# git_info.always is never written, so that ninja runs this each time; git_info.h is rewritten only where it changes.
# (Not marked SYMBOLIC: CMake would then leave out ninja's restat, and everything behind it would be built each time.)
find_package(Git QUIET)
add_custom_command(
  OUTPUT ${generated}/git_info.h ${generated}/git_info.always
  COMMAND ${CMAKE_COMMAND} -DGIT=${GIT_EXECUTABLE} -DSOURCE=${PROJECT_SOURCE_DIR} -DOUTPUT=${generated}/git_info.h
          -P ${CMAKE_CURRENT_LIST_DIR}/git_info.cmake
  DEPENDS ${CMAKE_CURRENT_LIST_DIR}/git_info.cmake
  COMMENT "Asking git for the commit"
  VERBATIM)

add_library(splash_build_info STATIC ${CMAKE_CURRENT_LIST_DIR}/git_info.cpp ${generated}/git_info.h)
target_link_libraries(splash_build_info PUBLIC splash_flags)
target_include_directories(splash_build_info PUBLIC ${generated})
