# cmake -DGIT=… -DSOURCE=… -DOUTPUT=git_info.h -P git_info.cmake: writes the commit and whether the tree differs from it.
set(commit "unknown")
set(state "unknown")
if(GIT)
  # No optional locks: a build must not get in the way of a git command that runs beside it.
  execute_process(
    COMMAND ${GIT} --no-optional-locks -C ${SOURCE} status --porcelain=v2 --branch
    OUTPUT_VARIABLE status RESULT_VARIABLE failed ERROR_QUIET)
  if(NOT failed)
    if(status MATCHES "# branch.oid ([0-9a-f]+)\n")
      set(commit "${CMAKE_MATCH_1}")
    endif()
    if(status MATCHES "(^|\n)[^#\n]")
      set(state "dirty")
    else()
      set(state "clean")
    endif()
  endif()
endif()
file(CONFIGURE OUTPUT ${OUTPUT} @ONLY CONTENT [[
#define SPLASH_GIT_COMMIT "@commit@"
#define SPLASH_GIT_STATE "@state@"
]])
