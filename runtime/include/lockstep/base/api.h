// SPDX-License-Identifier: Apache-2.0
// Marks the exports of the shared libraries, which are built with hidden visibility. A class or function of a public
// header that a source file defines has LOCKSTEP_API; otherwise a program can't link it.
//
//   class LOCKSTEP_API Reducer { ... };            with members that a source file defines
//   class LOCKSTEP_API PeerLost : public Error;    thrown, or with virtual functions: one typeinfo in the whole process
//   LOCKSTEP_API int intra_op_threads();           a function that a source file defines
//
// Templates, inline functions, enums and plain data structs need no mark.
#pragma once

#if __cplusplus < 202002L
#error "lockstep needs C++20: compile with -std=c++20, or in CMake target_compile_features(TARGET PRIVATE cxx_std_20)"
#endif

// These macros change the layout of std::vector, std::string and others. lockstep's libraries, and the spdlog that they
// link, are built without _GLIBCXX_DEBUG and with _GLIBCXX_USE_CXX11_ABI=1: another program would compile, and crash.
//
// _GLIBCXX_ASSERTIONS checks what can be checked in the same layout.
#ifdef _GLIBCXX_DEBUG
#error "lockstep's libraries are built without _GLIBCXX_DEBUG: compile without it, or with _GLIBCXX_ASSERTIONS"
#endif
#if defined(_GLIBCXX_USE_CXX11_ABI) && !_GLIBCXX_USE_CXX11_ABI
#error "lockstep's libraries are built with _GLIBCXX_USE_CXX11_ABI=1, the default: compile with it, not with 0"
#endif

#define LOCKSTEP_API __attribute__((visibility("default")))
// A nested class or a member template of a LOCKSTEP_API class that only the library's sources define and use:
// struct LOCKSTEP_LOCAL Impl;
#define LOCKSTEP_LOCAL __attribute__((visibility("hidden")))
