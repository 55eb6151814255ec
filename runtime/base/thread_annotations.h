// SPDX-License-Identifier: Apache-2.0
// Locks written as types: clang checks them with -Wthread-safety, other compilers see nothing.
// https://clang.llvm.org/docs/ThreadSafetyAnalysis.html
#pragma once

#if defined(__clang__)
#define LOCKSTEP_ATTRIBUTE(x) __attribute__((x))
#else
#define LOCKSTEP_ATTRIBUTE(x)
#endif

#define CAPABILITY(x) LOCKSTEP_ATTRIBUTE(capability(x))
#define SCOPED_CAPABILITY LOCKSTEP_ATTRIBUTE(scoped_lockable)
#define GUARDED_BY(x) LOCKSTEP_ATTRIBUTE(guarded_by(x))
#define PT_GUARDED_BY(x) LOCKSTEP_ATTRIBUTE(pt_guarded_by(x))
#define REQUIRES(...) LOCKSTEP_ATTRIBUTE(requires_capability(__VA_ARGS__))
#define EXCLUDES(...) LOCKSTEP_ATTRIBUTE(locks_excluded(__VA_ARGS__))
#define ACQUIRE(...) LOCKSTEP_ATTRIBUTE(acquire_capability(__VA_ARGS__))
#define RELEASE(...) LOCKSTEP_ATTRIBUTE(release_capability(__VA_ARGS__))
#define NO_THREAD_SAFETY_ANALYSIS LOCKSTEP_ATTRIBUTE(no_thread_safety_analysis)
#define TRY_ACQUIRE(...) LOCKSTEP_ATTRIBUTE(try_acquire_capability(__VA_ARGS__))
