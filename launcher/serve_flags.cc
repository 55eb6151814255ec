#include "launcher/serve_flags.h"

#include <fmt/format.h>

#include <algorithm>

#include "launcher/flag_values.h"

namespace lockstep::launcher {
namespace {

constexpr std::int64_t kMostClients = std::int64_t{1} << 20;
constexpr std::int64_t kMostCount = std::int64_t{1} << 24;

}  // namespace

std::string interpret(const RawServeFlags& raw, ServeOptions& options) {
  auto& server = options.server;
  if (!raw.host.empty()) server.listen.host = raw.host;
  if (!raw.port.empty()) {
    const auto port = parse_port(raw.port);
    if (!port) return fmt::format("--port {}: give a port from 1 to 65535, or 0 for a free one", raw.port);
    server.listen.port = *port;
  }
  if (!raw.auth.empty()) {
    if (raw.auth != "on" && raw.auth != "off") return fmt::format("--store-auth {}: give on or off", raw.auth);
    options.authenticate = raw.auth == "on";
  }
  if (!options.authenticate && !options.secret_file.empty()) {
    return fmt::format(
        "--secret-file {} with --store-auth off: a server without authentication has no secret; give "
        "one of them",
        options.secret_file);
  }
  if (!raw.max_clients.empty()) {
    const auto clients = parse_count(raw.max_clients, kMostClients);
    if (!clients) return fmt::format("--max-clients {}: give a number from 1 to {}", raw.max_clients, kMostClients);
    server.max_clients = static_cast<std::size_t>(*clients);
    options.max_clients_given = true;
  }
  if (!raw.max_count.empty()) {
    const auto count = parse_count(raw.max_count, kMostCount);
    if (!count) return fmt::format("--max-count {}: give a number from 1 to {}", raw.max_count, kMostCount);
    server.limits.max_count = static_cast<std::size_t>(*count);
  }
  const struct {
    std::string_view flag;
    const std::string& text;
    std::size_t& limit;
  } sizes[] = {{"--max-memory", raw.max_memory, server.max_stored_bytes},
               {"--max-key", raw.max_key, server.limits.max_key_bytes},
               {"--max-value", raw.max_value, server.limits.max_value_bytes}};
  for (const auto& size : sizes) {
    if (size.text.empty()) continue;
    const auto bytes = parse_bytes(size.text);
    if (!bytes) return fmt::format("{} {}: give bytes, at least 1, such as 8192, 64K, 8M or 1G", size.flag, size.text);
    size.limit = *bytes;
  }
  // One request must hold the largest key and value; the rest of it is lengths and counts.
  constexpr std::size_t kOverhead = 1024;
  const std::size_t largest = server.limits.max_key_bytes + server.limits.max_value_bytes;
  if (largest < server.limits.max_key_bytes || largest > server.max_stored_bytes) {
    return fmt::format(
        "--max-memory {}: one key of {} and value of {} bytes would not fit; raise it, or lower --max-key "
        "and --max-value",
        server.max_stored_bytes, server.limits.max_key_bytes, server.limits.max_value_bytes);
  }
  server.limits.max_message_bytes = std::max(server.limits.max_message_bytes, largest + kOverhead);
  if (!raw.greeting_timeout.empty()) {
    const auto limit = parse_seconds(raw.greeting_timeout);
    if (!limit || limit->count() == 0) {
      return fmt::format("--greeting-timeout {}: give seconds above 0 and at most 86400", raw.greeting_timeout);
    }
    server.greeting_timeout = *limit;
  }
  return {};
}

}  // namespace lockstep::launcher
