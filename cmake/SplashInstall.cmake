# cmake --install: headers, static libraries and a package for find_package(splash CONFIG). Its targets: splash::splash, the
# references and the fast CPU implementation; splash::cuda beside it, where nvcc was found. See examples/cpp.
include(CMakePackageConfigHelpers)
include(GNUInstallDirs)
set(folder ${CMAKE_INSTALL_LIBDIR}/cmake/splash)

add_library(splash_splash INTERFACE)
target_link_libraries(splash_splash INTERFACE splash_cpu_ref)
set(headers core cpu_ref)
set(libraries flags core cpu_ref splash)
if(SPLASH_HAVE_CUDA)
  # In the build the forward's objects are linked as they are, for they register variants; here callers find them by name.
  get_target_property(objects splash_entmax INTERFACE_SOURCES)
  add_library(splash_entmax_archive STATIC ${objects})
  set_target_properties(splash_entmax_archive PROPERTIES LINKER_LANGUAGE CXX)
  target_link_libraries(splash_entmax_archive PUBLIC splash_gpu)
  target_link_libraries(splash_entmax_backward PUBLIC $<INSTALL_INTERFACE:splash::entmax_archive>)
  add_library(splash_cuda INTERFACE)
  target_link_libraries(splash_cuda INTERFACE splash_entmax_attention)
  list(APPEND headers gpu)
  list(APPEND libraries cuda_flags gpu entmax_archive entmax_backward entmax_attention cuda)
endif()

foreach(library IN LISTS libraries)
  set_target_properties(splash_${library} PROPERTIES EXPORT_NAME ${library})
  install(TARGETS splash_${library} EXPORT splash COMPONENT development ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
endforeach()
foreach(header IN LISTS headers)
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/${header} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/splash COMPONENT development
          FILES_MATCHING PATTERN "*.h" PATTERN tests EXCLUDE)
endforeach()
install(EXPORT splash NAMESPACE splash:: FILE splash-targets.cmake DESTINATION ${folder} COMPONENT development)
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/splash-config.cmake.in ${PROJECT_BINARY_DIR}/splash-config.cmake
                              INSTALL_DESTINATION ${folder})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/splash-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/splash-config.cmake ${PROJECT_BINARY_DIR}/splash-config-version.cmake
        DESTINATION ${folder} COMPONENT development)
