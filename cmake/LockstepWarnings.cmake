# Warnings, in our own code only; LOCKSTEP_WERROR makes them errors. Sanitizers are chosen by LOCKSTEP_SANITIZE.
# SPDX-License-Identifier: Apache-2.0
add_library(lockstep_flags INTERFACE)
# Our own sources include public headers as users do, "lockstep/...", and the rooms' from the root.
target_include_directories(lockstep_flags INTERFACE "${PROJECT_SOURCE_DIR}" "${PROJECT_SOURCE_DIR}/runtime/include")
target_compile_options(lockstep_flags INTERFACE -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual
                                                -Wcast-align -Wnull-dereference $<$<BOOL:${LOCKSTEP_WERROR}>:-Werror>)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # g++ 12 reports null dereferences and overflows inside its own standard library at -O2, g++ 14 reads past its strings at -O3.
  target_compile_options(lockstep_flags INTERFACE -Wno-psabi -Wno-null-dereference -Wno-stringop-overflow -Wno-array-bounds
                                                  -Wno-restrict -Wno-maybe-uninitialized -Wno-stringop-overread)
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  target_compile_options(lockstep_flags INTERFACE -Wthread-safety)
endif()
if(LOCKSTEP_SANITIZE)
  target_compile_options(lockstep_flags INTERFACE -fsanitize=${LOCKSTEP_SANITIZE} -fno-omit-frame-pointer
                                                  -fno-sanitize-recover=all -g1)
  target_link_options(lockstep_flags INTERFACE -fsanitize=${LOCKSTEP_SANITIZE})
  if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    # A loop that asks for vectors gets none under a sanitizer.
    target_compile_options(lockstep_flags INTERFACE -Wno-pass-failed)
    # As g++ defines them; the sources ask for these names.
    if(LOCKSTEP_SANITIZE MATCHES "thread")
      target_compile_definitions(lockstep_flags INTERFACE __SANITIZE_THREAD__=1)
    endif()
    if(LOCKSTEP_SANITIZE MATCHES "address")
      target_compile_definitions(lockstep_flags INTERFACE __SANITIZE_ADDRESS__=1)
    endif()
  endif()
  if(LOCKSTEP_SANITIZE MATCHES "undefined")
    # The vptr check opens a pipe to look at memory: it is wrong where the descriptors have run out, which tests do.
    target_compile_options(lockstep_flags INTERFACE -fno-sanitize=vptr)
  endif()
endif()
if(LOCKSTEP_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    message(FATAL_ERROR "LOCKSTEP_FUZZ needs clang's libFuzzer, the compiler is ${CMAKE_CXX_COMPILER_ID}: use --preset fuzz")
  endif()
  # libFuzzer sees which code an input reaches, in the rooms too.
  target_compile_options(lockstep_flags INTERFACE -fsanitize=fuzzer-no-link)
endif()
