// SPDX-License-Identifier: Apache-2.0
// In a test's program: the fake plug-in is the one that it finds, unless LOCKSTEP_PLUGIN_PATH names another.
#include <cstdlib>

namespace {
const int found_plugin = ::setenv("LOCKSTEP_PLUGIN_PATH", LOCKSTEP_FAKE_PLUGIN_FOLDER, 0);
}
