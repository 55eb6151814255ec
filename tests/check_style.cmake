# Tests of the sources: the include rule, headers that stand alone, one format, pages that name what is there.
add_test(NAME check_layers COMMAND "${CMAKE_COMMAND}" "-DROOT=${PROJECT_SOURCE_DIR}"
                                   -P "${CMAKE_CURRENT_SOURCE_DIR}/check_layers.cmake")
add_test(NAME check_layers_finds COMMAND "${CMAKE_COMMAND}" "-DCHECK=${CMAKE_CURRENT_SOURCE_DIR}/check_layers.cmake"
                                 "-DWORK=${CMAKE_CURRENT_BINARY_DIR}/check_layers_trees"
                                 -P "${CMAKE_CURRENT_SOURCE_DIR}/check_layers_test.cmake")
add_test(NAME check_docs COMMAND "${CMAKE_COMMAND}" "-DROOT=${PROJECT_SOURCE_DIR}"
                                 -P "${CMAKE_CURRENT_SOURCE_DIR}/check_docs.cmake")
add_test(NAME check_environment COMMAND "${CMAKE_COMMAND}" "-DROOT=${PROJECT_SOURCE_DIR}"
                                        -P "${CMAKE_CURRENT_SOURCE_DIR}/check_environment.cmake")
add_test(NAME check_environment_finds COMMAND "${CMAKE_COMMAND}" "-DCHECK=${CMAKE_CURRENT_SOURCE_DIR}/check_environment.cmake"
                                      "-DWORK=${CMAKE_CURRENT_BINARY_DIR}/check_environment_trees"
                                      -P "${CMAKE_CURRENT_SOURCE_DIR}/check_environment_test.cmake")

# check_headers: one source per header, which includes it first and twice. Built when the test runs, not with the rest.
file(GLOB_RECURSE headers RELATIVE "${PROJECT_SOURCE_DIR}" CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/runtime/*.h"
     "${PROJECT_SOURCE_DIR}/proto/*.h" "${PROJECT_SOURCE_DIR}/launcher/*.h" "${PROJECT_SOURCE_DIR}/tests/support/*.h")
# The headers of a plug-in that is not built stand on a package that is not there.
set(plugin_packages "")
foreach(name gloo mpi)
  string(TOUPPER ${name} upper)
  if(NOT LOCKSTEP_HAS_${upper})
    list(FILTER headers EXCLUDE REGEX "^runtime/comm/${name}/")
  elseif(name STREQUAL "mpi")
    list(APPEND plugin_packages MPI::MPI_C)
  else()
    list(APPEND plugin_packages gloo)
  endif()
endforeach()
if(NOT LOCKSTEP_HAS_CUDA_HEADERS)
  list(FILTER headers EXCLUDE REGEX "^runtime/(cuda|comm/nccl)/")
else()
  list(APPEND plugin_packages lockstep_cuda_headers)
  if(NOT LOCKSTEP_HAS_NCCL_HEADER)
    list(FILTER headers EXCLUDE REGEX "^runtime/comm/nccl/")
  endif()
endif()
# Each of torch's costs ten seconds. Their own sources include them first; the one that users include is checked here.
list(FILTER headers EXCLUDE REGEX "^runtime/libtorch[/.]")
if(LOCKSTEP_HAVE_LIBTORCH)
  list(APPEND headers runtime/libtorch.h)
endif()
set(sources "")
foreach(header ${headers})
  string(REPLACE "/" "_" name "${header}")
  set(source "${CMAKE_CURRENT_BINARY_DIR}/check_headers/${name}.cc")
  file(CONFIGURE OUTPUT "${source}" CONTENT "#include \"${header}\"\n#include \"${header}\"\n")
  list(APPEND sources "${source}")
endforeach()
add_library(check_headers OBJECT EXCLUDE_FROM_ALL ${sources})
target_link_libraries(check_headers PRIVATE lockstep_flags lockstep::train GTest::gtest ${plugin_packages})
if(LOCKSTEP_HAVE_LIBTORCH)
  target_link_libraries(check_headers PRIVATE lockstep::torch)
endif()
target_compile_options(check_headers PRIVATE -O0 -w)
cmake_host_system_information(RESULT cores QUERY NUMBER_OF_LOGICAL_CORES)
add_test(NAME check_headers COMMAND "${CMAKE_COMMAND}" --build "${PROJECT_BINARY_DIR}" --target check_headers
                                    --parallel ${cores})

find_program(CLANG_FORMAT NAMES clang-format)
set(clang_format_version "")
if(CLANG_FORMAT)
  execute_process(COMMAND "${CLANG_FORMAT}" --version OUTPUT_VARIABLE clang_format_version)
endif()
# Versions differ in what they do with the same .clang-format: Debian 12's decides.
if(clang_format_version MATCHES "version 14\\.")
  add_test(NAME check_format COMMAND "${PROJECT_SOURCE_DIR}/scripts/format" --check)
else()
  add_test(NAME check_format COMMAND "${CMAKE_COMMAND}" -E echo "SKIPPED: clang-format 14 is not installed")
  set_tests_properties(check_format PROPERTIES SKIP_REGULAR_EXPRESSION "SKIPPED")
endif()
set_tests_properties(check_layers check_layers_finds check_docs check_environment check_environment_finds check_headers
                     check_format PROPERTIES LABELS style)
set_tests_properties(check_layers check_layers_finds check_docs check_environment check_environment_finds check_format
                     PROPERTIES TIMEOUT 60)
# A build of its own, with a job per core: nothing else runs beside it.
set_tests_properties(check_headers PROPERTIES TIMEOUT 900 RUN_SERIAL TRUE)
