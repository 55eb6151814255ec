// SPDX-License-Identifier: Apache-2.0
// Warns in every source that includes it: -Wall, but no -Werror.
inline int lockstep_test_unused() {
  int never_read = 0;
  return 0;
}
