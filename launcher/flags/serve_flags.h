// SPDX-License-Identifier: Apache-2.0
// The flags of `lockstep store serve`.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/flags/command_line.h"

namespace lockstep::launcher {

// A limit of the server that a flag sets.
struct LimitFlag {
  enum class Unit { count, bytes };

  std::string_view name;  // "--max-clients"
  Unit unit;
  std::string_view help;
  std::size_t& (*field)(store::TcpStoreServerOptions&);

  // Returns the default in the form in which a user types it: "8K", "65536".
  std::string default_text() const;
};

std::span<const LimitFlag> limit_flags();

// The flags' texts, as typed; empty: not given.
struct RawServeFlags {
  std::string host;
  std::string port;
  std::string auth;
  std::string greeting_timeout;
  std::vector<std::string> limits = std::vector<std::string>(limit_flags().size());  // one for each of limit_flags()
};

// Moves the raw texts into `options`. Throws InvalidArgument.
void interpret(const RawServeFlags& raw, ServeOptions& options);

}  // namespace lockstep::launcher
