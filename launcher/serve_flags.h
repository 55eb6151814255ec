// The flags of `lockstep store serve`.
#pragma once

#include <string>

#include "launcher/command_line.h"

namespace lockstep::launcher {

// As typed; empty: not given.
struct RawServeFlags {
  std::string host;
  std::string port;
  std::string auth;
  std::string max_clients;
  std::string max_memory;
  std::string max_key;
  std::string max_value;
  std::string max_count;
  std::string greeting_timeout;
};

// Moves the raw texts into `options`; returns what is wrong with them, or nothing.
std::string interpret(const RawServeFlags& raw, ServeOptions& options);

}  // namespace lockstep::launcher
