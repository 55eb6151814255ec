// SPDX-License-Identifier: Apache-2.0
#include "launcher/flags/serve_flags.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "launcher/flags/flag_values.h"
#include "lockstep/base/error.h"

namespace lockstep::launcher {
namespace {

using Options = store::TcpStoreServerOptions;
using Unit = LimitFlag::Unit;

constexpr std::int64_t kMostOfAnything = std::int64_t{1} << 40;
constexpr std::string_view kMaxClients = "--max-clients";

constexpr LimitFlag kLimits[] = {
    {kMaxClients, Unit::count, "Clients at one time",
     [](Options& server) -> std::size_t& { return server.max_clients; }},
    {"--max-memory", Unit::bytes, "Memory of all keys, values and queues together",
     [](Options& server) -> std::size_t& { return server.max_stored_bytes; }},
    {"--max-keys", Unit::count, "Keys, and items of queues, together",
     [](Options& server) -> std::size_t& { return server.max_keys; }},
    {"--max-key", Unit::bytes, "Longest key",
     [](Options& server) -> std::size_t& { return server.limits.max_key_bytes; }},
    {"--max-value", Unit::bytes, "Longest value",
     [](Options& server) -> std::size_t& { return server.limits.max_value_bytes; }},
    {"--max-count", Unit::count, "Keys in one request",
     [](Options& server) -> std::size_t& { return server.limits.max_count; }},
    {"--max-waited-keys", Unit::count, "Keys that clients wait for, all together",
     [](Options& server) -> std::size_t& { return server.max_waited_keys; }},
    {"--max-greeting-clients", Unit::count, "Clients that have not said yet who they are",
     [](Options& server) -> std::size_t& { return server.max_greeting_clients; }},
    {"--max-client-memory", Unit::bytes, "Memory of one client's requests and unread replies",
     [](Options& server) -> std::size_t& { return server.max_client_bytes; }},
    {"--max-held-memory", Unit::bytes, "Memory of all clients' requests and unread replies",
     [](Options& server) -> std::size_t& { return server.max_held_bytes; }},
};

void read_limit(const LimitFlag& flag, const std::string& text, ServeOptions& options) {
  if (flag.unit == Unit::bytes) {
    flag.field(options.server) =
        required(parse_bytes(text), flag.name, text, "give bytes, at least 1, such as 8192, 64K, 8M or 1G");
  } else {
    flag.field(options.server) =
        static_cast<std::size_t>(required(parse_count(text, kMostOfAnything), flag.name, text,
                                          fmt::format("give a number from 1 to {}", kMostOfAnything)));
  }
  if (flag.name == kMaxClients) options.max_clients_given = true;
}

// Raises max_message_bytes so that one message holds the largest key and value. Throws InvalidArgument, which names the
// flags, if the limits contradict each other: a client may hold one message each way.
void fit_together(Options& server) {
  constexpr std::size_t kLengthsAndCounts = 1024;
  auto& limits = server.limits;
  const std::size_t largest = limits.max_key_bytes + limits.max_value_bytes;
  if (largest < limits.max_key_bytes || largest > server.max_stored_bytes) {
    refuse(
        "--max-memory {}: one key of {} and value of {} bytes would not fit; raise it, or lower --max-key and "
        "--max-value",
        server.max_stored_bytes, limits.max_key_bytes, limits.max_value_bytes);
  }
  if (2 * largest + kLengthsAndCounts > server.max_client_bytes || server.max_client_bytes > server.max_held_bytes) {
    refuse(
        "--max-client-memory {} and --max-held-memory {}: one client may hold a request and a reply of {} bytes each; "
        "raise them, the second at least to the first, or lower --max-value",
        server.max_client_bytes, server.max_held_bytes, largest);
  }
  limits.max_message_bytes = std::max(limits.max_message_bytes, largest + kLengthsAndCounts);
}

}  // namespace

std::string LimitFlag::default_text() const {
  Options defaults;
  std::size_t value = field(defaults);
  if (unit == Unit::count) return fmt::format("{}", value);
  constexpr std::array<const char*, 5> kUnits = {"", "K", "M", "G", "T"};
  std::size_t scale = 0;
  for (; scale + 1 < kUnits.size() && value % 1024 == 0; ++scale) value /= 1024;
  return fmt::format("{}{}", value, kUnits[scale]);
}

std::span<const LimitFlag> limit_flags() { return kLimits; }

void interpret(const RawServeFlags& raw, ServeOptions& options) {
  if (!raw.host.empty()) options.server.listen.host = parsed_as("--host", [&] { return net::parse_host(raw.host); });
  read_flag("--port", raw.port, options.server.listen.port, parse_port,
            "give a port from 1 to 65535, or 0 for a free one");
  if (!raw.auth.empty()) {
    if (raw.auth != "on" && raw.auth != "off") refuse("--store-auth {}: give on or off", raw.auth);
    options.authenticate = raw.auth == "on";
  }
  if (!options.authenticate && !options.secret_file.empty()) {
    refuse("--secret-file {} with --store-auth off: a server without authentication has no secret; give one of them",
           options.secret_file);
  }
  for (std::size_t i = 0; i < raw.limits.size(); ++i) {
    if (!raw.limits[i].empty()) read_limit(kLimits[i], raw.limits[i], options);
  }
  if (!raw.greeting_timeout.empty()) {
    options.server.greeting_timeout = seconds_above_0("--greeting-timeout", raw.greeting_timeout);
  }
  fit_together(options.server);
}

}  // namespace lockstep::launcher
