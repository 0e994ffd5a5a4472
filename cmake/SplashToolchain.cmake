# Compiler flags, ccache, and whether the CUDA parts are built.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()

# -O2 for what is not hot, to build fast; cpu_ref asks for -O3 itself, tests for -O1.
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -DNDEBUG")
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O1 -g1")

# As many compilations at once as there are processors. Ninja's own choice is two more, which on two cores takes a third
# longer: compilers evict one another's caches.
cmake_host_system_information(RESULT processors QUERY NUMBER_OF_LOGICAL_CORES)
set_property(GLOBAL PROPERTY JOB_POOLS splash_compile=${processors})
set(CMAKE_JOB_POOL_COMPILE splash_compile)

find_program(SPLASH_CCACHE ccache)
if(SPLASH_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${SPLASH_CCACHE})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${SPLASH_CCACHE})
endif()

add_library(splash_flags INTERFACE)
# Who links an installed splash (cmake/SplashInstall.cmake) has warnings of their own, but needs ${splash_arch} below: how
# Eigen aligns what it allocates depends on it.
target_include_directories(splash_flags INTERFACE $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>
                                                  $<INSTALL_INTERFACE:include/splash>)
target_compile_features(splash_flags INTERFACE $<INSTALL_INTERFACE:cxx_std_20>)
target_compile_options(splash_flags INTERFACE "$<BUILD_INTERFACE:$<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra>>")
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # GCC bugs 105593 and 105651: its own AVX-512 headers trip the first two hundreds of times in files that use Eigen, its
  # std::string and fmt 9 the others. clang-tidy looks for the same mistakes.
  target_compile_options(splash_flags INTERFACE
    "$<BUILD_INTERFACE:$<$<COMPILE_LANGUAGE:CXX>:-Wno-maybe-uninitialized;-Wno-uninitialized;-Wno-stringop-overflow;-Wno-restrict>>")
endif()
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  set(splash_arch -march=x86-64-v3)
  if(SPLASH_NATIVE)
    set(splash_arch -march=native)
  endif()
elseif(SPLASH_NATIVE)
  set(splash_arch -mcpu=native)
endif()
target_compile_options(splash_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:${splash_arch}>)

if(SPLASH_SANITIZE)
  target_compile_options(splash_flags INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${SPLASH_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer>)
  target_link_options(splash_flags INTERFACE -fsanitize=${SPLASH_SANITIZE})
endif()

set(SPLASH_HAVE_CUDA OFF)
if(SPLASH_CUDA)
  include(CheckLanguage)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES AND DEFINED ENV{CUDAARCHS})
      set(CMAKE_CUDA_ARCHITECTURES $ENV{CUDAARCHS})
    elseif(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
      set(CMAKE_CUDA_ARCHITECTURES "80-real;90a-real")
    endif()
    enable_language(CUDA)
    if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION) # CMake 3.25 does not know that nvcc speaks C++20 since 12.0
      set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
      set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
    endif()
    set(CMAKE_CUDA_STANDARD 20)
    set(CMAKE_CUDA_STANDARD_REQUIRED ON)
    find_package(CUDAToolkit REQUIRED)
    set(SPLASH_HAVE_CUDA ON)
    message(STATUS "splash: CUDA ${CMAKE_CUDA_COMPILER_VERSION} found, building the CUDA parts for ${CMAKE_CUDA_ARCHITECTURES}")
  else()
    message(STATUS "splash: no nvcc found, the CUDA parts are NOT built; everything on the CPU works as usual")
  endif()
else()
  message(STATUS "splash: the CUDA parts are NOT built, because SPLASH_CUDA is OFF")
endif()
