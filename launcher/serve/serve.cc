// SPDX-License-Identifier: Apache-2.0
#include "launcher/serve/serve.h"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <memory>
#include <string_view>

#include "launcher/base/exit_codes.h"
#include "launcher/base/signals.h"
#include "launcher/base/system.h"
#include "launcher/serve/secret_file.h"
#include "lockstep/base/environment.h"
#include "lockstep/base/error.h"
#include "runtime/base/logging.h"
#include "runtime/membership/membership_server.h"
#include "runtime/net/address.h"
#include "runtime/net/interfaces.h"
#include "runtime/net/open_files.h"
#include "runtime/net/tcp_socket.h"
#include "runtime/rendezvous/join.h"
#include "runtime/store/client/wire_keys.h"

namespace lockstep::launcher {
namespace {

constexpr const char* kSecretFileVariable = "LOCKSTEP_STORE_SECRET_FILE";
// Descriptors other than those of clients: the standard streams, the log, those of the loop.
constexpr std::uint64_t kOwnDescriptors = 32;

int complain(int exit_code, std::string_view text) {
  print_error(fmt::format("lockstep store serve: {}", text));
  return exit_code;
}

// The secret, and the setting with which clients get it.
struct Key {
  std::optional<store::Secret> secret;
  std::optional<SecretFile> file;  // set if the secret was generated here
  std::string clients_set;
};

store::Secret secret_in(const std::string& path) {
  Environment only_this;
  only_this.set(kSecretFileVariable, path);
  try {
    return *store::Secret::of_environment(only_this);
  } catch (const InvalidArgument& error) {
    // The text begins with the variable, which is not the source of this path, and then has "=PATH: " or ": ".
    std::string text = std::string(error.what()).substr(std::string_view(kSecretFileVariable).size());
    if (text.starts_with('=')) text.front() = ' ';
    throw InvalidArgument("--secret-file" + text);
  }
}

void find_key(Key& key, const ServeOptions& options, const Environment& environment) {
  if (!options.authenticate) return;
  if (!options.secret_file.empty()) {
    key.secret = secret_in(options.secret_file);
    key.clients_set = fmt::format(" {}={}", kSecretFileVariable, options.secret_file);
  } else if (environment.has("LOCKSTEP_STORE_SECRET")) {
    key.secret = store::Secret::of_environment(environment);
    key.clients_set = " and the LOCKSTEP_STORE_SECRET that is set here";
  } else if (const auto path = environment.get(kSecretFileVariable)) {
    key.secret = store::Secret::of_environment(environment);
    key.clients_set = fmt::format(" {}={}", kSecretFileVariable, *path);
  } else {
    key.secret = store::Secret::random();
    key.file.emplace(*key.secret, environment);
    key.clients_set = fmt::format(" {}={}", kSecretFileVariable, key.file->path());
  }
}

// Raises this process's limit as far as allowed, and returns the number of clients for which there are descriptors, one
// each.
std::size_t make_room() {
  net::raise_open_files_limit();
  return std::max(net::open_files_limit().soft, kOwnDescriptors + 1) - kOwnDescriptors;
}

std::size_t clients_that_fit(const ServeOptions& options) {
  const auto room = make_room();
  const auto wanted = options.server.max_clients;
  if (wanted <= room) return wanted;
  if (!options.max_clients_given) return room;
  throw InvalidArgument(
      fmt::format("--max-clients {}: the limit of open files has room for only {} clients; raise the limit with ulimit "
                  "-Hn, or give a smaller --max-clients",
                  wanted, room));
}

// Returns the requested name of this host, if there is a secret: the store then listens at every address, since other
// hosts may know another address by that name. Empty for an address, localhost, and a store without a secret.
std::string served_name(const std::string& host, bool has_secret) {
  const auto found = net::look_up(host);
  if (!found.is_name || !found.is_here || host.empty() || net::is_localhost(host)) return {};
  if (has_secret) return host;
  if (!net::faces_others(net::interfaces_of_this_host(), found.address)) {
    log_warn(
        "--host: {} is {} on this host, an address that clients of other hosts can't reach; give an address that these "
        "clients can reach",
        host, found.address);
  }
  return {};
}

// Returns an address at which clients reach the store: one that means all addresses is of no use to another host.
net::HostPort reachable(net::HostPort address, const std::string& name, const Environment& environment) {
  if (!name.empty()) {
    address.host = name;
  } else if (address.host == "0.0.0.0" || address.host == "::") {
    address.host = net::choose_interface(net::interfaces_of_this_host(), environment).address;
  }
  return address;
}

std::string announcement(const net::HostPort& listening, const net::HostPort& address, const Key& key,
                         const std::string& run_id) {
  const auto ranks = fmt::format("RANK WORLD_SIZE {} LOCKSTEP_STORE={}",
                                 run_id.empty() ? "LOCKSTEP_RUN_ID (one for each job)" : "LOCKSTEP_RUN_ID=" + run_id,
                                 address.to_string());
  if (!key.secret) {
    return fmt::format(
        "lockstep store: serves whoever comes to {}; torch clients need MASTER_ADDR={} MASTER_PORT={}, ranks of "
        "lockstep {}",
        listening.to_string(), address.host, address.port, ranks);
  }
  return fmt::format("lockstep store: serves at {}; its ranks need {}{}", listening.to_string(), ranks,
                     key.clients_set);
}

// Returns false if the server has ended by itself.
bool wait_for_end(Signals& signals, const store::TcpStoreServer& server) {
  const auto asks_to_end = [](int signal) {
    return signal == SIGINT || signal == SIGTERM || signal == SIGHUP || signal == SIGQUIT;
  };
  while (true) {
    std::array<pollfd, 2> ends = {{{signals.fd(), POLLIN, 0}, {server.end_fd(), POLLIN, 0}}};
    if (::poll(ends.data(), ends.size(), -1) < 0) {
      if (errno == EINTR) continue;
      throw SystemError("poll", errno);
    }
    if (ends[1].revents != 0) return false;
    for (const int signal : signals.take()) {
      if (asks_to_end(signal)) return true;
      if (signal == SIGTSTP) raise(SIGSTOP);
    }
  }
}

int serve(const ServeOptions& options) {
  const auto environment = Environment::of_process();
  Signals signals;  // before the server's thread, which must not receive signals
  if (signal(SIGPIPE, SIG_IGN) == SIG_ERR) throw SystemError("ignore SIGPIPE", errno);
  auto server_options = options.server;
  server_options.max_clients = clients_that_fit(options);
  Key key;
  find_key(key, options, environment);
  server_options.secret = key.secret;
  server_options.run_id = environment.get("LOCKSTEP_RUN_ID").value_or("");
  const auto members = std::make_shared<membership::MembershipServer>();
  server_options.extension = members;
  // A scheduler keeps a job's id when it restarts the job.
  server_options.keys_of_run = [members](const std::string& run_id) {
    const std::string prefix = rendezvous::run_prefix(run_id);
    members->forget(prefix);
    return store::wire_key("the job's", prefix);
  };
  const std::string name = served_name(options.server.listen.host, key.secret.has_value());
  if (!name.empty()) server_options.listen.host.clear();
  const store::TcpStoreServer server(server_options);
  if (!options.authenticate) {
    log_warn(
        "--store-auth off: whoever reaches {} may read, change and stop what runs through it; give --store-auth on "
        "unless the network is trusted",
        server.address().to_string());
  }
  write_to_stdout(
      announcement(server.address(), reachable(server.address(), name, environment), key, server_options.run_id) +
      "\n");
  return wait_for_end(signals, server) ? 0 : complain(kExitInternal, "the server has ended; the line above says why");
}

}  // namespace

int serve_command(const ServeOptions& options) {
  set_log_label("store");
  try {
    return serve(options);
  } catch (const InvalidArgument& error) {
    return complain(kExitUsage, error.what());
  } catch (const Error& error) {
    return complain(kExitInternal, error.what());
  }
}

}  // namespace lockstep::launcher
