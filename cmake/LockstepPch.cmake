# For a build from nothing, what takes half of its time away, with a compiler cache as without. LOCKSTEP_PCH: precompiled
# headers, and tests that are not optimised. LOCKSTEP_UNITY: a room's sources are compiled eight at a time, so that no two of
# them may have helpers of one name.
#
# Both hide an #include that a source forgot. It is seen by a whole build without either, at night; check_headers compiles
# every public header alone in each build without a sanitizer.
# SPDX-License-Identifier: Apache-2.0
option(LOCKSTEP_PCH "Precompiled headers, and tests without optimisation" ON)
option(LOCKSTEP_UNITY "Compile the sources of a room eight at a time" ON)
if(LOCKSTEP_PCH AND CMAKE_CXX_COMPILER_LAUNCHER)
  # What ccache wants, to keep what was made with a precompiled header (its manual, "Precompiled headers"); scripts/lib.sh
  # sets its sloppiness.
  add_compile_options("$<$<COMPILE_LANG_AND_ID:CXX,GNU>:-fpch-preprocess>"
                      "$<$<COMPILE_LANG_AND_ID:CXX,Clang>:SHELL:-Xclang -fno-pch-timestamp>")
endif()

# lockstep_unity(TARGET): where LOCKSTEP_UNITY is ON.
function(lockstep_unity TARGET)
  set_target_properties(${TARGET} PROPERTIES UNITY_BUILD ${LOCKSTEP_UNITY} UNITY_BUILD_BATCH_SIZE 8)
endfunction()

# lockstep_pch(NAME COMPILED flags... LIBS ... HEADERS ...): a precompiled header that targets of the same flags take with
# lockstep_use_pch. All definitions of its LIBS must be theirs too; they may have more.
function(lockstep_pch NAME)
  cmake_parse_arguments(P "" "" "COMPILED;LIBS;HEADERS" ${ARGN})
  set(source "${PROJECT_BINARY_DIR}/CMakeFiles/${NAME}.cc")
  file(CONFIGURE OUTPUT "${source}" CONTENT "// The precompiled header is made with this file; it needs one.\n")
  add_library(${NAME} OBJECT EXCLUDE_FROM_ALL "${source}")
  target_link_libraries(${NAME} PRIVATE lockstep_flags ${P_LIBS})
  set_target_properties(${NAME} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
  target_compile_options(${NAME} PRIVATE ${P_COMPILED})
  target_precompile_headers(${NAME} PRIVATE ${P_HEADERS})
endfunction()

# lockstep_use_pch(TARGET NAME): where LOCKSTEP_PCH is ON. All but lockstep_pch_rooms are for tests, which are not optimised.
function(lockstep_use_pch TARGET NAME)
  if(LOCKSTEP_PCH)
    target_precompile_headers(${TARGET} REUSE_FROM ${NAME})
    if(NOT NAME STREQUAL "lockstep_pch_rooms")
      target_compile_options(${TARGET} PRIVATE ${unoptimised})
    endif()
  endif()
endfunction()

set(standard_headers <algorithm> <atomic> <chrono> <condition_variable> <filesystem> <functional> <map> <memory> <mutex>
                     <optional> <set> <span> <string> <string_view> <thread> <unordered_map> <variant> <vector>
                     <fmt/format.h> <fmt/ranges.h>)
set(unoptimised -O0)
if(LOCKSTEP_HAVE_LIBTORCH)
  # For tests. torch/torch.h costs more than ten seconds: LibTorch's tests take this one where LOCKSTEP_PCH is OFF too, and
  # are not optimised there either, for a compiler cache has none of them.
  lockstep_pch(lockstep_pch_torch COMPILED -fPIE ${unoptimised} LIBS torch HEADERS <torch/torch.h>)
endif()
if(LOCKSTEP_PCH)
  lockstep_pch(lockstep_pch_rooms COMPILED -fPIC LIBS spdlog::spdlog HEADERS ${standard_headers})
  if(LOCKSTEP_BUILD_TESTS)
    lockstep_pch(lockstep_pch_tests COMPILED -fPIE ${unoptimised} LIBS spdlog::spdlog GTest::gtest
                 HEADERS ${standard_headers} <gmock/gmock.h> <gtest/gtest.h>)
  endif()
endif()
