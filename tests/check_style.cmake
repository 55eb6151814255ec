# Tests of the sources: the include rule, headers that stand alone, one format, pages that name what is there.
add_test(NAME check_layers COMMAND "${CMAKE_COMMAND}" "-DROOT=${PROJECT_SOURCE_DIR}" -DARROWS=ON
                                   -P "${CMAKE_CURRENT_SOURCE_DIR}/check_layers.cmake")
add_test(NAME check_layers_finds COMMAND "${CMAKE_COMMAND}" "-DCHECK=${CMAKE_CURRENT_SOURCE_DIR}/check_layers.cmake"
                                 "-DWORK=${CMAKE_CURRENT_BINARY_DIR}/check_layers_trees"
                                 -P "${CMAKE_CURRENT_SOURCE_DIR}/check_layers_test.cmake")
add_test(NAME check_docs COMMAND "${CMAKE_COMMAND}" "-DROOT=${PROJECT_SOURCE_DIR}"
                                 -P "${CMAKE_CURRENT_SOURCE_DIR}/check_docs.cmake")
add_test(NAME check_claims COMMAND "${CMAKE_COMMAND}" "-DROOT=${PROJECT_SOURCE_DIR}"
                                   -P "${CMAKE_CURRENT_SOURCE_DIR}/check_claims.cmake")
add_test(NAME check_claims_finds COMMAND "${CMAKE_COMMAND}" "-DCHECK=${CMAKE_CURRENT_SOURCE_DIR}/check_claims.cmake"
                                 "-DWORK=${CMAKE_CURRENT_BINARY_DIR}/check_claims_trees"
                                 -P "${CMAKE_CURRENT_SOURCE_DIR}/check_claims_test.cmake")
add_test(NAME check_environment COMMAND "${CMAKE_COMMAND}" "-DROOT=${PROJECT_SOURCE_DIR}"
                                        -P "${CMAKE_CURRENT_SOURCE_DIR}/check_environment.cmake")
add_test(NAME check_environment_finds COMMAND "${CMAKE_COMMAND}" "-DCHECK=${CMAKE_CURRENT_SOURCE_DIR}/check_environment.cmake"
                                      "-DWORK=${CMAKE_CURRENT_BINARY_DIR}/check_environment_trees"
                                      -P "${CMAKE_CURRENT_SOURCE_DIR}/check_environment_test.cmake")
add_test(NAME check_names COMMAND "${CMAKE_COMMAND}" "-DROOT=${PROJECT_SOURCE_DIR}"
                                  -P "${CMAKE_CURRENT_SOURCE_DIR}/check_names.cmake")
add_test(NAME check_names_finds COMMAND "${CMAKE_COMMAND}" "-DCHECK=${CMAKE_CURRENT_SOURCE_DIR}/check_names.cmake"
                                "-DWORK=${CMAKE_CURRENT_BINARY_DIR}/check_names_trees"
                                -P "${CMAKE_CURRENT_SOURCE_DIR}/check_names_test.cmake")
add_test(NAME check_gpu_runs COMMAND "${CMAKE_COMMAND}" "-DROOT=${PROJECT_SOURCE_DIR}"
                                     -P "${CMAKE_CURRENT_SOURCE_DIR}/check_gpu_runs.cmake")
add_test(NAME check_gpu_runs_finds COMMAND "${CMAKE_COMMAND}" "-DCHECK=${CMAKE_CURRENT_SOURCE_DIR}/check_gpu_runs.cmake"
                                   "-DWORK=${CMAKE_CURRENT_BINARY_DIR}/check_gpu_runs_trees"
                                   -P "${CMAKE_CURRENT_SOURCE_DIR}/check_gpu_runs_test.cmake")
add_test(NAME check_promises COMMAND "${CMAKE_COMMAND}" "-DROOT=${PROJECT_SOURCE_DIR}"
                                     -P "${CMAKE_CURRENT_SOURCE_DIR}/check_promises.cmake")
add_test(NAME check_promises_finds COMMAND "${CMAKE_COMMAND}" "-DCHECK=${CMAKE_CURRENT_SOURCE_DIR}/check_promises.cmake"
                                   "-DWORK=${CMAKE_CURRENT_BINARY_DIR}/check_promises_trees"
                                   -P "${CMAKE_CURRENT_SOURCE_DIR}/check_promises_test.cmake")
add_test(NAME check_words COMMAND "${CMAKE_COMMAND}" "-DROOT=${PROJECT_SOURCE_DIR}" -P "${CMAKE_CURRENT_SOURCE_DIR}/check_words.cmake")
add_test(NAME check_words_finds COMMAND "${CMAKE_COMMAND}" "-DCHECK=${CMAKE_CURRENT_SOURCE_DIR}/check_words.cmake"
                                   "-DWORK=${CMAKE_CURRENT_BINARY_DIR}/check_words_trees"
                                   -P "${CMAKE_CURRENT_SOURCE_DIR}/check_words_test.cmake")

# A browser shows nothing of a picture that is not XML.
find_program(PYTHON3 NAMES python3)
if(PYTHON3)
  add_test(NAME check_pictures COMMAND "${PYTHON3}" "${CMAKE_CURRENT_SOURCE_DIR}/check_pictures.py" "${PROJECT_SOURCE_DIR}")
  add_test(NAME check_pictures_finds COMMAND "${PYTHON3}" "${CMAKE_CURRENT_SOURCE_DIR}/check_pictures.py" --self-test)
  set_tests_properties(check_pictures check_pictures_finds PROPERTIES LABELS style TIMEOUT 60)
else()
  lockstep_skipped_test(check_pictures "python3 is not installed")
endif()

# Every source says its licence.
add_test(NAME check_licence
         COMMAND sh -c "! grep -rL --include=*.h --include=*.cc --include=*.cu 'SPDX-License-Identifier: Apache-2.0' \"$@\" | grep ."
                 check_licence proto runtime launcher examples benchmarks tests
         WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}")
set_tests_properties(check_licence PROPERTIES LABELS style TIMEOUT 60)

# Sanitizers change nothing about what a header includes.
if(NOT LOCKSTEP_SANITIZE)
  include("${CMAKE_CURRENT_SOURCE_DIR}/check_headers.cmake")
endif()

find_program(CLANG_FORMAT NAMES clang-format)
set(clang_format_version "")
if(CLANG_FORMAT)
  execute_process(COMMAND "${CLANG_FORMAT}" --version OUTPUT_VARIABLE clang_format_version)
endif()
# Versions differ in what they do with the same .clang-format: Debian 12's decides.
if(clang_format_version MATCHES "version 14\\.")
  add_test(NAME check_format COMMAND "${PROJECT_SOURCE_DIR}/scripts/format" --check)
else()
  lockstep_skipped_test(check_format "clang-format 14 is not installed")
endif()
set_tests_properties(check_layers check_layers_finds check_docs check_claims check_claims_finds check_environment
                     check_environment_finds check_names check_names_finds check_gpu_runs check_gpu_runs_finds check_promises
                     check_promises_finds check_words check_words_finds check_format PROPERTIES LABELS style)
set_tests_properties(check_layers check_layers_finds check_docs check_claims check_claims_finds check_environment
                     check_environment_finds check_names check_names_finds check_promises check_promises_finds check_words
                     check_words_finds PROPERTIES TIMEOUT 60)
set_tests_properties(check_format PROPERTIES TIMEOUT 300)  # of processor time it takes 40 s
