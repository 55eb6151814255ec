// SPDX-License-Identifier: Apache-2.0
// Function multi-versioning: one binary, the widest vectors that the processor has.
#pragma once

// Put LOCKSTEP_CLONES before a hot function of plain loops; the loader picks the version once. g++ only, and not under
// sanitizers, whose runtimes are not up yet when the choice is made.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
#define LOCKSTEP_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define LOCKSTEP_CLONES
#endif
#define LOCKSTEP_INLINE inline __attribute__((always_inline))
