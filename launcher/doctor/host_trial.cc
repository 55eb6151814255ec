// SPDX-License-Identifier: Apache-2.0
#include "launcher/doctor/host_trial.h"

#include <fmt/format.h>
#include <poll.h>

#include <atomic>
#include <chrono>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "launcher/base/exit_codes.h"
#include "launcher/base/system.h"
#include "launcher/doctor/trial_lines.h"
#include "launcher/process/find_program.h"
#include "lockstep/base/environment.h"
#include "lockstep/base/error.h"
#include "runtime/base/event_fd.h"
#include "runtime/base/host.h"
#include "runtime/base/io.h"
#include "runtime/base/logging.h"
#include "runtime/base/plugin.h"
#include "runtime/base/quiet_thread.h"
#include "runtime/base/random_bytes.h"
#include "runtime/net/interfaces.h"
#include "runtime/net/route.h"
#include "runtime/net/stream.h"
#include "runtime/net/tcp_socket.h"

namespace lockstep::launcher::doctor {
namespace {

// Limit for connecting, and for receiving the bytes. A reachable host answers in milliseconds.
constexpr std::chrono::seconds kTrialLimit{3};
// Bytes behind the token: more than one packet, to detect a path that passes only small ones.
constexpr std::size_t kBulk = std::size_t{64} << 10;
constexpr std::size_t kMostAtOnce = 32;
constexpr std::chrono::milliseconds kNoRoom{100};  // pause before accepting again, when descriptors are used up

// Sends the token and kBulk bytes to each client that connects.
class Greeter {
 public:
  explicit Greeter(const std::string& token)
      : bytes_(token + std::string(kBulk, '.')),
        listener_(net::tcp_listen({"", 0})),
        thread_(start_quiet_thread([this] { serve(); })) {}
  ~Greeter() {
    leaving_.notify();
    thread_.join();
    for (std::thread& greeting : greetings_) greeting.join();
  }
  Greeter(const Greeter&) = delete;
  Greeter& operator=(const Greeter&) = delete;

  int port() const { return net::local_address(listener_.get()).port; }

 private:
  void serve() {
    while (is_asked_within(-1)) {
      try {
        if (UniqueFd client = net::tcp_try_accept(listener_.get())) greet(std::move(client));
      } catch (const SystemError& error) {
        log_warn("doctor: {}", error.what());
        pollfd pause{leaving_.fd(), POLLIN, 0};
        uninterrupted([&] { return poll(&pause, 1, static_cast<int>(kNoRoom.count())); });
      }
    }
  }
  // Returns false once this object is being destroyed.
  bool is_asked_within(int milliseconds) const {
    pollfd entries[] = {{leaving_.fd(), POLLIN, 0}, {listener_.get(), POLLIN, 0}};
    uninterrupted([&] { return poll(entries, 2, milliseconds); });
    return entries[0].revents == 0;
  }
  void greet(UniqueFd client) {
    greetings_.push_back(start_quiet_thread([this, fd = std::move(client)] {
      try {
        net::send_all(fd.get(), bytes_, Deadline::after(kTrialLimit));
      } catch (const Error& error) {  // the client reports it
        log_debug("doctor: {}", error.what());
      }
    }));
  }

  const std::string bytes_;
  const UniqueFd listener_;
  EventFd leaving_;
  std::vector<std::thread> greetings_;  // used by thread_ only
  std::thread thread_;
};

TrialResult try_peer(const TrialPeer& peer) {
  using Outcome = TrialResult::Outcome;
  TrialResult result{.node = peer.node, .address = peer.address, .outcome = Outcome::unreached};
  const auto began = std::chrono::steady_clock::now();
  const Deadline deadline = Deadline::after(kTrialLimit);
  try {
    const UniqueFd fd = net::tcp_connect_once(net::parse_host_port(peer.address), deadline);
    result.from = net::local_address(fd.get()).host;
    result.outcome = Outcome::cut;
    std::string bytes(peer.token.size() + kBulk, '\0');
    const auto all = std::as_writable_bytes(std::span(bytes));
    net::recv_exact(fd.get(), all.first(peer.token.size()), deadline);
    result.outcome = bytes.starts_with(peer.token) ? Outcome::cut : Outcome::stranger;
    if (result.outcome == Outcome::stranger) {
      result.problem = "somebody else than that host's lockstep answers there";
      return result;
    }
    net::recv_exact(fd.get(), all.subspan(peer.token.size()), deadline);
    result.outcome = Outcome::reached;
  } catch (const Error& error) {
    result.problem = error.what();
  }
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  return result;
}

// Tries all peers in parallel. The results are in the order of `peers`.
std::vector<TrialResult> try_all(const std::vector<TrialPeer>& peers) {
  std::vector<TrialResult> results(peers.size());
  std::atomic<std::size_t> next{0};
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < std::min(kMostAtOnce, peers.size()); ++i) {
    threads.push_back(start_quiet_thread([&] {
      for (std::size_t at = next++; at < peers.size(); at = next++) results[at] = try_peer(peers[at]);
    }));
  }
  for (std::thread& thread : threads) thread.join();
  return results;
}

// Chooses the address in the same way as a rank's backends: comm/tcp/own_address.h, net/route.h.
void choose_address(const std::string& endpoint, TrialHost& host) {
  const auto environment = Environment::of_process();
  const auto interfaces = net::interfaces_of_this_host();
  try {
    if (environment.has("NCCL_SOCKET_IFNAME") || environment.has("GLOO_SOCKET_IFNAME")) {
      const auto choice = net::choose_interface(interfaces, environment);
      host.address = choice.address;
      host.why = fmt::format("{}: {}", choice.name, choice.why);
      return;
    }
    const std::string first = net::HostPort{net::parse_host_port(endpoint).host, kRendezvousPort}.to_string();
    host.address = net::own_address(first, true, interfaces, environment);
    host.why = fmt::format("by the way to {}", net::parse_host_port(endpoint).host);
  } catch (const Error& error) {
    host.problems.emplace_back(error.what());
  }
}

TrialHost look_around(const AgentInput& input, const DoctorOptions& options) {
  TrialHost host{.name = host_name(), .build = std::string(build_stamp()), .token = random_hex(16)};
  choose_address(input.start().endpoint, host);
  if (!input.problem.empty()) host.problems.push_back(input.problem);
  if (!options.program.empty()) {
    const auto program = find_program(options.program, Environment::of_process());
    if (program.path.empty()) host.problems.push_back(program.problem);
  }
  return host;
}

}  // namespace

int run_host_trial(AgentInput& input, const DoctorOptions& options) {
  TrialHost host = look_around(input, options);
  const Greeter greeter(host.token);
  host.port = greeter.port();
  print_error(fmt::format("{}{}", kHostLine, encode(host)));
  std::vector<TrialPeer> peers;
  for (std::string line = input.read_line(); line != kTryLine; line = input.read_line()) {
    if (line.empty()) return kExitInternal;  // the process that asked has ended
    if (!line.starts_with(kPeerLine)) continue;
    if (auto peer = decode_trial_peer(std::string_view(line).substr(kPeerLine.size()))) peers.push_back(*peer);
  }
  for (const TrialResult& result : try_all(peers)) print_error(fmt::format("{}{}", kResultLine, encode(result)));
  print_error(kDoneLine);
  // The other hosts may not have connected yet.
  while (!input.read_line().empty()) {
  }
  return 0;
}

}  // namespace lockstep::launcher::doctor
