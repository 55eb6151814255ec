// SPDX-License-Identifier: Apache-2.0
// Programs of these tests do what their arguments say, one after the other: "ACTION", "ACTION:VALUE", and with "@RANK"
// behind it on that rank only.
#pragma once

#include <csignal>
#include <cstdlib>
#include <string>
#include <vector>

namespace lockstep::e2e {

struct Action {
  std::string name;
  std::string value;
};

inline int own_rank() {
  for (const auto* variable : {"RANK", "OMPI_COMM_WORLD_RANK"}) {
    if (const char* text = std::getenv(variable)) return std::atoi(text);
  }
  return 0;
}

// The actions of this rank.
inline std::vector<Action> script(int count, char** arguments) {
  std::vector<Action> actions;
  for (int i = 1; i < count; ++i) {
    std::string text = arguments[i];
    if (const auto at = text.rfind('@'); at != std::string::npos) {
      if (std::atoi(text.c_str() + at + 1) != own_rank()) continue;
      text.resize(at);
    }
    const auto colon = text.find(':');
    actions.push_back({text.substr(0, colon), colon == std::string::npos ? "" : text.substr(colon + 1)});
  }
  return actions;
}

// Signals that a "wait-signal:N" takes must be blocked before anybody can send them.
inline void block_awaited_signals(const std::vector<Action>& actions) {
  sigset_t awaited;
  sigemptyset(&awaited);
  for (const auto& action : actions) {
    if (action.name == "wait-signal") sigaddset(&awaited, std::atoi(action.value.c_str()));
  }
  sigprocmask(SIG_BLOCK, &awaited, nullptr);
}

inline void wait_signal(const std::string& number) {
  sigset_t awaited;
  sigemptyset(&awaited);
  sigaddset(&awaited, std::atoi(number.c_str()));
  int taken = 0;
  sigwait(&awaited, &taken);
}

}  // namespace lockstep::e2e
