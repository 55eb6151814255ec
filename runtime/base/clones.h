// SPDX-License-Identifier: Apache-2.0
// For loops that are to become vectors: function multi-versioning (one binary, the widest vectors that the processor
// has), and a promise to the compiler.
#pragma once

// Put one of these before a hot function of plain loops; the loader picks the version once. g++ only, and not under
// sanitizers, whose runtimes are not up yet when the choice is made; clang 14 has no clones for templates.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
#define LOCKSTEP_CLONES_FOR(...) __attribute__((target_clones(__VA_ARGS__, "default")))
#else
#define LOCKSTEP_CLONES_FOR(...)
#endif
// For loops of sums and of bits, which gain from wider vectors alone.
#define LOCKSTEP_VECTOR_CLONES LOCKSTEP_CLONES_FOR("avx512f", "avx2")

// Put it before a loop that works element by element: a destination that is a source carries nothing from one element
// to the next.
#if defined(__clang__)
#define LOCKSTEP_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define LOCKSTEP_INDEPENDENT _Pragma("GCC ivdep")
#endif
