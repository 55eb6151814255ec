// SPDX-License-Identifier: Apache-2.0
// For programs that load Open MPI, which no sanitizer has been through: what the sanitizers ask for by name.
//
// LeakSanitizer: Open MPI keeps memory to the end. ThreadSanitizer: what the library does with memory is not looked
// at, since it does not see how it synchronises. Nothing of ours is in it.

// NOLINTBEGIN(bugprone-reserved-identifier)
extern "C" const char* __lsan_default_suppressions();
extern "C" const char* __lsan_default_suppressions() {
  return "leak:libpmix\nleak:libmpi\nleak:libopen-\nleak:mca_\nleak:libhwloc\nleak:libevent\nleak:vasprintf\n";
}
extern "C" const char* __tsan_default_options();
extern "C" const char* __tsan_default_options() { return "ignore_noninstrumented_modules=1"; }
// NOLINTEND(bugprone-reserved-identifier)
