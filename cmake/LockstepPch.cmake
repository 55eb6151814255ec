# LOCKSTEP_PCH: for a build from nothing, what takes half of its time away: precompiled headers, and tests that are not
# optimised. Where a compiler cache has the objects it is OFF: ccache keeps nothing that was made with a precompiled header.
#
# A precompiled header hides an #include that a source forgot. Seen is it without: where a developer has ccache, and in
# scripts/test --nightly; check_headers compiles every header alone in each build without a sanitizer.
set(pch_default ON)
if(CMAKE_CXX_COMPILER_LAUNCHER)
  set(pch_default OFF)
endif()
option(LOCKSTEP_PCH "Precompiled headers, and tests without optimisation" ${pch_default})

# lockstep_pch(NAME COMPILED flags... LIBS ... HEADERS ...): a precompiled header that targets of the same flags take with
# lockstep_use_pch. All definitions of its LIBS must be theirs too; they may have more.
function(lockstep_pch NAME)
  cmake_parse_arguments(P "" "" "COMPILED;LIBS;HEADERS" ${ARGN})
  set(source "${CMAKE_BINARY_DIR}/CMakeFiles/${NAME}.cc")
  file(CONFIGURE OUTPUT "${source}" CONTENT "// The precompiled header is made with this file; it needs one.\n")
  add_library(${NAME} OBJECT EXCLUDE_FROM_ALL "${source}")
  target_link_libraries(${NAME} PRIVATE lockstep_flags ${P_LIBS})
  set_target_properties(${NAME} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
  target_compile_options(${NAME} PRIVATE ${P_COMPILED})
  target_precompile_headers(${NAME} PRIVATE ${P_HEADERS})
endfunction()

# lockstep_use_pch(TARGET NAME): where LOCKSTEP_PCH is ON.
function(lockstep_use_pch TARGET NAME)
  if(LOCKSTEP_PCH)
    target_precompile_headers(${TARGET} REUSE_FROM ${NAME})
  endif()
endfunction()

set(standard_headers <algorithm> <atomic> <chrono> <condition_variable> <filesystem> <functional> <map> <memory> <mutex>
                     <optional> <set> <span> <string> <string_view> <thread> <unordered_map> <variant> <vector>
                     <fmt/format.h> <fmt/ranges.h>)
if(LOCKSTEP_HAVE_LIBTORCH)
  # For executables. torch/torch.h costs more than ten seconds: LibTorch's tests take this one where LOCKSTEP_PCH is OFF too.
  lockstep_pch(lockstep_pch_torch COMPILED -fPIE LIBS torch HEADERS <torch/torch.h>)
endif()
set(unoptimised "")
if(LOCKSTEP_PCH)
  set(unoptimised -O0)
  lockstep_pch(lockstep_pch_rooms COMPILED -fPIC LIBS spdlog::spdlog HEADERS ${standard_headers})
  if(LOCKSTEP_BUILD_TESTS)
    lockstep_pch(lockstep_pch_tests COMPILED -fPIE ${unoptimised} LIBS spdlog::spdlog GTest::gtest
                 HEADERS ${standard_headers} <gmock/gmock.h> <gtest/gtest.h>)
  endif()
endif()
