// SPDX-License-Identifier: Apache-2.0
#include "launcher/flags/serve_flags.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <memory>

#include "launcher/flags/flag_values.h"
#include "lockstep/base/error.h"

namespace lockstep::launcher {
namespace {

// Returns a size in the form in which a user types it: "8K".
std::string as_typed(std::size_t bytes) {
  constexpr std::array<const char*, 5> kUnits = {"", "K", "M", "G", "T"};
  std::size_t scale = 0;
  for (; scale + 1 < kUnits.size() && bytes % 1024 == 0; ++scale) bytes /= 1024;
  return fmt::format("{}{}", bytes, kUnits[scale]);
}

void add_limits(FlagTable& flags, store::TcpStoreServerOptions& server) {
  constexpr std::int64_t kMostOfAnything = std::int64_t{1} << 40;
  const auto count = [&](const char* name, std::size_t& limit, const char* help) {
    flags.add(name, "N", fmt::format("{}. Default {}", help, limit),
              read_as(limit, up_to(kMostOfAnything), fmt::format("give a number from 1 to {}", kMostOfAnything)));
  };
  const auto size = [&](const char* name, std::size_t& limit, const char* help) {
    flags.add(name, "SIZE", fmt::format("{}. Default {}", help, as_typed(limit)),
              read_as(limit, parse_bytes, "give bytes, at least 1, such as 8192, 64K, 8M or 1G"));
  };
  count("--max-clients", server.max_clients, "Clients at one time");
  size("--max-memory", server.max_stored_bytes, "Memory of all keys, values and queues together");
  count("--max-keys", server.max_keys, "Keys, and items of queues, together");
  size("--max-key", server.limits.max_key_bytes, "Longest key");
  size("--max-value", server.limits.max_value_bytes, "Longest value");
  count("--max-count", server.limits.max_count, "Keys in one request");
  count("--max-waited-keys", server.max_waited_keys, "Keys that clients wait for, all together");
  count("--max-greeting-clients", server.max_greeting_clients, "Clients that have not said yet who they are");
  size("--max-client-memory", server.max_client_bytes, "Memory of one client's requests and unread replies");
  size("--max-held-memory", server.max_held_bytes, "Memory of all clients' requests and unread replies");
}

// Raises max_message_bytes so that one message holds the largest key and value. Throws InvalidArgument, which names the
// flags, if the limits contradict each other: a client may hold one message each way.
void fit_together(store::TcpStoreServerOptions& server) {
  constexpr std::size_t kLengthsAndCounts = 1024;
  auto& limits = server.limits;
  const std::size_t largest = limits.max_key_bytes + limits.max_value_bytes;
  if (largest < limits.max_key_bytes || largest > server.max_stored_bytes) {
    refuse(
        "--max-memory {}: one key of {} and value of {} bytes would not fit; raise --max-memory, or lower --max-key "
        "and --max-value",
        server.max_stored_bytes, limits.max_key_bytes, limits.max_value_bytes);
  }
  if (2 * largest + kLengthsAndCounts > server.max_client_bytes || server.max_client_bytes > server.max_held_bytes) {
    refuse(
        "--max-client-memory {} and --max-held-memory {}: one client may hold a request and a reply of {} bytes each; "
        "raise both, --max-held-memory at least to --max-client-memory, or lower --max-value",
        server.max_client_bytes, server.max_held_bytes, largest);
  }
  limits.max_message_bytes = std::max(limits.max_message_bytes, largest + kLengthsAndCounts);
}

}  // namespace

std::function<Command()> add_serve_flags(FlagTable& flags) {
  const auto options = std::make_shared<ServeOptions>();
  auto& server = options->server;
  flags.add(
      "--host", "ADDRESS", "Where to listen: an address or name of this host, 0.0.0.0 or :: for all. Default 127.0.0.1",
      [&](auto flag, auto& text) { server.listen.host = parsed_as(flag, [&] { return net::parse_host(text); }); });
  flags.add("--port", "PORT", "Port to listen at. Default 0: a free one",
            read_as(server.listen.port, parse_port, "give a port from 1 to 65535, or 0 for a free one"));
  flags.add("--secret-file", "FILE", "The secret: 64 hex digits, mode 0600", &options->secret_file);
  flags.add("--store-auth", "on|off", "off: serve torch clients, and everyone else, without a secret",
            [&authenticate = options->authenticate](auto flag, auto& text) {
              if (text != "on" && text != "off") refuse("{} {}: give on or off", flag, text);
              authenticate = text == "on";
            });
  add_limits(flags, server);
  const std::chrono::duration<double> greeting = server.greeting_timeout;
  flags.add("--greeting-timeout", "SECONDS",
            fmt::format("How long a client may take to identify itself. Default {}", greeting.count()),
            read_seconds_above_0(server.greeting_timeout));
  return [&flags, options]() -> Command {
    flags.read();
    if (!options->authenticate && !options->secret_file.empty()) {
      refuse(
          "--secret-file {} can't be used with --store-auth off, since a server without authentication has no secret; "
          "give one of them",
          options->secret_file);
    }
    options->max_clients_given = !flags.text("--max-clients").empty();
    fit_together(options->server);
    return *options;
  };
}

}  // namespace lockstep::launcher
