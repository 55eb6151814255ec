// SPDX-License-Identifier: Apache-2.0
// Defines LOCKSTEP_API, which marks the classes and functions that lockstep's shared libraries export. The shared
// libraries are built with hidden visibility: of the classes and functions that source files define, a program can link
// only to those whose declarations have LOCKSTEP_API.
//
//   class LOCKSTEP_API Reducer { ... };            with members that a source file defines
//   class LOCKSTEP_API PeerLost : public Error;    thrown, or with virtual functions: one typeinfo in the whole process
//   LOCKSTEP_API int intra_op_threads();           a function that a source file defines
//
// Templates, inline functions, enums and plain data structs do not need LOCKSTEP_API.
#pragma once

#if __cplusplus < 202002L
#error "lockstep needs C++20: compile with -std=c++20, or in CMake target_compile_features(TARGET PRIVATE cxx_std_20)"
#endif

// _GLIBCXX_DEBUG and _GLIBCXX_USE_CXX11_ABI change the memory layout of std::vector, std::string and other standard
// types. The libraries of lockstep, and the spdlog library to which they link, are built without _GLIBCXX_DEBUG and
// with _GLIBCXX_USE_CXX11_ABI=1: a program that is built with other settings would compile, but crash at run time.
//
// A program may define _GLIBCXX_ASSERTIONS, which adds checks and does not change the memory layout of any type.
#ifdef _GLIBCXX_DEBUG
#error "lockstep's libraries are built without _GLIBCXX_DEBUG: compile without it, or with _GLIBCXX_ASSERTIONS"
#endif
#if defined(_GLIBCXX_USE_CXX11_ABI) && !_GLIBCXX_USE_CXX11_ABI
#error "lockstep's libraries are built with _GLIBCXX_USE_CXX11_ABI=1, the default: compile with it, not with 0"
#endif

#define LOCKSTEP_API __attribute__((visibility("default")))
// Hides a nested class or member template of a LOCKSTEP_API class from programs that link to the library: `struct
// LOCKSTEP_LOCAL Impl;`. LOCKSTEP_LOCAL is for members that only the sources of the library define and use.
#define LOCKSTEP_LOCAL __attribute__((visibility("hidden")))
