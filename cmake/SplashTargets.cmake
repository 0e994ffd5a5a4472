# splash_unity(target …): with SPLASH_UNITY, each target's C++ files compile as one, and the headers are read once. CUDA's
# do not, which CMake from 4.0 on would join, too: splash_kernels says which may be joined.
function(splash_unity)
  set_target_properties(${ARGN} PROPERTIES UNITY_BUILD ${SPLASH_UNITY} UNITY_BUILD_BATCH_SIZE 0)
  foreach(target IN LISTS ARGN)
    get_target_property(sources ${target} SOURCES)
    list(FILTER sources INCLUDE REGEX "\\.cu$")
    set_source_files_properties(${sources} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  endforeach()
endfunction()

# splash_unity_tests(name …): the same for the C++ files of tests, eight at a time.
function(splash_unity_tests)
  foreach(name IN LISTS ARGN)
    if(TARGET ${name})
      set_target_properties(${name} PROPERTIES UNITY_BUILD ${SPLASH_UNITY} UNITY_BUILD_BATCH_SIZE 8)
    endif()
  endforeach()
endfunction()

# splash_library(name SOURCES … LINK …): a static library with the project's flags.
function(splash_library name)
  cmake_parse_arguments(arg "" "" "SOURCES;LINK" ${ARGN})
  add_library(${name} STATIC ${arg_SOURCES})
  splash_unity(${name})
  target_link_libraries(${name} PUBLIC splash_flags ${arg_LINK})
endfunction()

# splash_kernels(variable name FILE.cu …): small CUDA files that with SPLASH_UNITY compile as one, which CMake does for
# C++ alone: nvcc reads the same headers for each file and architecture anew, some 4 s. Sets variable to what to compile.
function(splash_kernels variable name)
  set(${variable} ${ARGN} PARENT_SCOPE)
  if(SPLASH_UNITY)
    list(TRANSFORM ARGN PREPEND "#include \"${CMAKE_CURRENT_SOURCE_DIR}/" OUTPUT_VARIABLE lines)
    list(TRANSFORM lines APPEND "\"\n")
    list(JOIN lines "" content)
    set(file ${CMAKE_CURRENT_BINARY_DIR}/${name}.cu)
    file(CONFIGURE OUTPUT ${file} CONTENT "${content}")
    set(${variable} ${file} PARENT_SCOPE)
  endif()
endfunction()

# splash_one_ptx(target): its kernels have no instructions of their own for any architecture, so that the PTX of the
# project's first one serves all of them. A fifth of nvcc's time, where there are two.
function(splash_one_ptx target)
  set(architectures ${CMAKE_CUDA_ARCHITECTURES})
  list(FILTER architectures INCLUDE REGEX "^[0-9]+a?-real$")
  list(LENGTH architectures count)
  if(count LESS 2 OR NOT architectures STREQUAL CMAKE_CUDA_ARCHITECTURES)
    return()
  endif()
  list(TRANSFORM architectures REPLACE "a?-real" "")
  list(SORT architectures COMPARE NATURAL)
  list(GET architectures 0 first)
  list(TRANSFORM architectures PREPEND "sm_")
  list(JOIN architectures "," codes)
  set_target_properties(${target} PROPERTIES CUDA_ARCHITECTURES OFF)
  target_compile_options(${target} PRIVATE
                         $<$<COMPILE_LANGUAGE:CUDA>:--generate-code=arch=compute_${first},code=[${codes}]>)
endfunction()

# splash_test(name SOURCES … LINK … [LABELS …]): one doctest program, one ctest entry; of the label gpu one for each file of
# tests, for their oracles take minutes of a core, and entries run beside one another.
# Labels in use: gpu (needs a device, else reports itself as skipped), slow (left out of the sanitizer run), python.
function(splash_test name)
  if(NOT SPLASH_TESTS)
    return()
  endif()
  cmake_parse_arguments(arg "" "" "SOURCES;LINK;LABELS" ${ARGN})
  if(NOT TARGET splash_doctest_main)
    find_package(doctest REQUIRED)
    add_library(splash_doctest_main OBJECT ${PROJECT_SOURCE_DIR}/cmake/doctest_main.cpp)
    target_link_libraries(splash_doctest_main PUBLIC splash_flags doctest::doctest)
  endif()
  add_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE splash_doctest_main ${arg_LINK})
  target_compile_options(${name} PRIVATE $<$<CONFIG:Release>:-O1>)
  set(files ${arg_SOURCES})
  list(FILTER files INCLUDE REGEX "_test\\.cpp$")
  list(LENGTH files count)
  if("gpu" IN_LIST arg_LABELS AND count GREATER 1)
    set(tests "")
    list(POP_FRONT files first) # has what lies in no other file, too: cases may be registered by hand
    foreach(file IN LISTS files)
      get_filename_component(stem ${file} NAME_WE)
      add_test(NAME ${name}.${stem} COMMAND ${name} --source-file=*/${stem}.cpp)
      list(APPEND tests ${name}.${stem})
    endforeach()
    list(TRANSFORM files REPLACE "^.*/" "*/")
    list(JOIN files "," others)
    get_filename_component(stem ${first} NAME_WE)
    add_test(NAME ${name}.${stem} COMMAND ${name} --source-file-exclude=${others})
    list(APPEND tests ${name}.${stem})
  else()
    set(tests ${name})
    add_test(NAME ${name} COMMAND ${name})
  endif()
  set_tests_properties(${tests} PROPERTIES LABELS "${arg_LABELS}" ENVIRONMENT "OMP_NUM_THREADS=2;OMP_WAIT_POLICY=passive;SPLASH_TUNED=off" TIMEOUT 600
                       SKIP_REGULAR_EXPRESSION "GPU tests skipped")
endfunction()

# splash_pytest(name folder [pytest's words]): the pytest files of a folder, one ctest entry. The tests find the built
# program, where there is one, in the environment variable SPLASH_BIN. Not under sanitizers, where the program would be
# most of the build.
function(splash_pytest name folder)
  splash_add_pytest(${name} run_pytest.sh ${folder} ${ARGN})
endfunction()

# splash_gpu_pytest(file): one ctest entry of a file of pytest's that needs a GPU. Without one it is reported as skipped.
function(splash_gpu_pytest file)
  get_filename_component(name ${file} NAME_WE)
  string(REGEX REPLACE "^test_" "python_gpu_" name ${name})
  splash_add_pytest(${name} run_gpu_pytest.sh ${file})
  if(TEST ${name})
    set_tests_properties(${name} PROPERTIES LABELS "python;gpu" SKIP_REGULAR_EXPRESSION "GPU tests skipped")
  endif()
endfunction()

function(splash_add_pytest name script tests)
  if(NOT SPLASH_TESTS OR SPLASH_SANITIZE)
    return()
  endif()
  get_filename_component(tests ${tests} ABSOLUTE)
  add_test(NAME ${name} COMMAND ${PROJECT_SOURCE_DIR}/cmake/${script} ${PROJECT_SOURCE_DIR} ${tests} ${ARGN}
           WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  # Some tests run at once: threads that wait for theirs give their core away. Tests go by rules, whatever was tuned here.
  set(environment "OMP_NUM_THREADS=2" "OMP_WAIT_POLICY=passive" "SPLASH_TUNED=off")
  if(TARGET splash_cli)
    list(APPEND environment "SPLASH_BIN=$<TARGET_FILE:splash_cli>")
  endif()
  set_tests_properties(${name} PROPERTIES LABELS python COST 100 ENVIRONMENT "${environment}" TIMEOUT 1200) # the longest: first
endfunction()

include(SplashBuildInfo) # splash_build_info
