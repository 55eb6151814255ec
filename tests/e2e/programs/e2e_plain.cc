// SPDX-License-Identifier: Apache-2.0
// A program that knows nothing of lockstep, to be launched. Says on stdout what it does; see script.h.
#include <cstdio>

#include "tests/e2e/programs/plain_actions.h"

int main(int count, char** arguments) {
  const auto actions = lockstep::e2e::script(count, arguments);
  lockstep::e2e::block_awaited_signals(actions);
  for (const auto& action : actions) {
    if (lockstep::e2e::perform_plain(action)) continue;
    std::fprintf(stderr, "e2e_plain: unknown action %s\n", action.name.c_str());
    return 98;
  }
}
