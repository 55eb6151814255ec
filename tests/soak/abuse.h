// SPDX-License-Identifier: Apache-2.0
// Everything that a bad client does to a store server, drawn at random.
#pragma once

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/random.h"
#include "proto/request.h"
#include "runtime/membership/member_link.h"
#include "runtime/net/stream.h"
#include "runtime/net/tcp_socket.h"
#include "runtime/store/client/tcp_connection.h"
#include "runtime/store/client/tcp_store.h"

namespace lockstep::soak {

using proto::Op;
using std::chrono::milliseconds;

inline Deadline brief() { return Deadline::after(milliseconds(300)); }

// Time passes; nothing is waited for.
inline void dawdle(std::uint64_t time_ms) { ::poll(nullptr, 0, static_cast<int>(time_ms)); }

inline std::string request(Op op, proto::Contents contents) {
  std::string bytes;
  proto::write_request(bytes, {op, std::move(contents)});
  return bytes;
}

inline UniqueFd connect_to(const store::Endpoint& endpoint) { return net::tcp_connect_once(endpoint.address, brief()); }

inline std::string opening() { return request(Op::validate, {{}, {}, proto::kMagic}); }

inline void drop(UniqueFd fd, bool reset) {
  if (reset) {  // Instead of a goodbye: what is on the way is lost.
    const linger now{1, 0};
    if (::setsockopt(fd.get(), SOL_SOCKET, SO_LINGER, &now, sizeof(now)) != 0) throw SystemError("SO_LINGER", errno);
  }
}

// The servers that are abused: one with a secret, one without, which also serves PyTorch's clients.
struct Targets {
  store::Endpoint guarded;
  store::Endpoint open;
};

class Abuser {
 public:
  Abuser(Targets targets, std::uint64_t seed) : targets_(std::move(targets)), random_(seed) {}

  // Does one bad thing, for a second at most.
  void act() {
    const auto kind = static_cast<std::size_t>(random_.below(kKinds.size()));
    ++tries_[kind];
    try {
      (this->*kKinds[kind].act)();
      ++done_[kind];
    } catch (const Error& error) {
      // Refused, closed or too slow, as may befall one who does such things; but not always.
      last_errors_[kind] = error.what();
    }
  }

  // What never came off although it was often tried; empty if all did.
  std::string failure() const {
    for (std::size_t kind = 0; kind < kKinds.size(); ++kind) {
      if (tries_[kind] < kEnough || done_[kind] > 0) continue;
      return fmt::format("none of {} {} came off, the last because: {}", tries_[kind], kKinds[kind].name,
                         last_errors_[kind]);
    }
    return {};
  }

  // "connections opened and dropped 4711, ..." of what was done.
  std::string summary() const {
    std::string text;
    for (std::size_t kind = 0; kind < kKinds.size(); ++kind) {
      text += fmt::format("{}{} of {} {}", kind == 0 ? "" : ", ", done_[kind], tries_[kind], kKinds[kind].name);
    }
    return text;
  }

 private:
  // An abuse of which so many failed and none was done does not do what it says.
  static constexpr std::uint64_t kEnough = 30;

  const store::Endpoint& any_target() { return random_.below(2) == 0 ? targets_.guarded : targets_.open; }

  // A number of bytes between, small ones more often.
  std::size_t some_bytes(std::size_t most) { return static_cast<std::size_t>(random_.below(random_.below(most) + 1)); }

  std::string noise(std::size_t bytes) {
    std::string text(bytes, '\0');
    for (char& byte : text) byte = static_cast<char>(random_.next());
    return text;
  }

  // Requests that a server of either kind might take, of an opened client.
  std::string requests(std::size_t count) {
    std::string bytes;
    for (std::size_t i = 0; i < count; ++i) {
      const std::string key = fmt::format("/abuse/{}", random_.below(64));
      const std::string value(some_bytes(4096), 'v');
      const auto number = static_cast<std::int64_t>(random_.below(1000));
      switch (random_.below(9)) {
        case 0: bytes += request(Op::set, {{key}, {value}, 0}); break;
        case 1: bytes += request(Op::get, {{key}, {}, 0}); break;
        case 2: bytes += request(Op::delete_key, {{key}, {}, 0}); break;
        case 3: bytes += request(Op::check, {{key, "/none"}, {}, 0}); break;
        case 4: bytes += request(Op::multi_set, {{key, "/abuse/0"}, {value, value}, 0}); break;
        // Taken out again: the same requests may be sent thousands of times, and who may write can fill a store.
        case 5: bytes += request(Op::queue_push, {{key}, {value}, 0}) + request(Op::queue_pop, {{key}, {}, 0}); break;
        case 6: bytes += request(Op::queue_pop, {{key}, {}, 0}) + request(Op::queue_pop, {{key}, {}, 0}); break;
        case 7: bytes += request(Op::list_keys, {}); break;
        default: bytes += request(Op::ping, {{}, {}, number}); break;
      }
    }
    return bytes;
  }

  void open_and_drop() {
    for (std::uint64_t left = random_.below(50); left > 0; --left) {
      drop(connect_to(any_target()), random_.below(2) == 0);
    }
  }

  void send_half_a_request() {
    UniqueFd fd = connect_to(targets_.open);
    const std::string bytes = opening() + requests(5);
    net::send_all(fd.get(), std::string_view(bytes).substr(0, some_bytes(bytes.size())), brief());
    dawdle(random_.below(200));
    drop(std::move(fd), random_.below(2) == 0);
  }

  void send_noise() {
    UniqueFd fd = connect_to(any_target());
    const std::string head = random_.below(2) == 0 ? opening() : std::string(1, '\x80');
    net::send_all(fd.get(), random_.below(2) == 0 ? noise(some_bytes(10000)) : head + noise(some_bytes(10000)),
                  brief());
    drop(std::move(fd), random_.below(2) == 0);
  }

  // Requests without end and without reading; the server holds them back.
  void flood() {
    UniqueFd fd = connect_to(targets_.open);
    net::send_all(fd.get(), opening(), brief());
    send_until_stuck(fd.get(), requests(200));
  }

  // Until the server takes no more, or closes the connection.
  static void send_until_stuck(int fd, const std::string& bytes) {
    try {
      for (const Deadline end = brief(); !end.expired();) net::send_all(fd, bytes, end);
    } catch (const Timeout&) {  // as it should be
    } catch (const net::ConnectionClosed&) {
    }
  }

  // It reads nothing of what it asks for, nor of the answers to its signs of life.
  void flood_as_a_member() {
    auto connection = store::TcpConnection::open_once(any_target(), brief());
    const std::string rank = std::to_string(random_.below(1 << 15));
    const std::string process = membership::encode(membership::ProcessInfo::of_this_process());
    connection.send(request(Op::register_member, {{"flood"}, {rank, "32768", process, ""}, 0}), brief());
    if (connection.receive(Op::register_member, 1, brief()).number != proto::kOk) throw Error("not registered");
    const net::Connection stuck = std::move(connection).release();
    std::string bytes = random_.below(2) == 0 ? requests(50) : "";
    for (int i = 0; i < 500; ++i) bytes += request(Op::heartbeat, {{}, {""}, 1});
    send_until_stuck(stuck.fd(), bytes);
  }

  // Many wait for one large value, few read it.
  void crowd_for_a_value() {
    const store::Endpoint& endpoint = any_target();
    store::TcpStore store(endpoint, brief(), {.request_timeout = milliseconds(500)});
    const std::string name = fmt::format("abuse/crowd/{}", random_.next());
    std::vector<store::TcpConnection> crowd;
    for (std::uint64_t left = 10 + random_.below(50); left > 0; --left) {
      crowd.push_back(store::TcpConnection::open_once(endpoint, brief()));
      crowd.back().send(request(Op::wait_get, {{"/" + name}, {}, -1}), brief());
    }
    store.set(name, std::string(std::size_t{1} << 20, 'v'));
    for (std::size_t i = 0; i < crowd.size(); i += 5) crowd[i].receive(Op::wait_get, 1, brief());
    store.erase(name);
  }

  void read_slowly() {
    UniqueFd fd = connect_to(targets_.open);
    net::send_all(fd.get(), opening() + requests(500), brief());
    std::array<std::byte, 100> some{};
    for (std::uint64_t left = random_.below(100); left > 0; --left) {
      net::recv_some(fd.get(), some, brief());
      dawdle(random_.below(5));
    }
  }

  void use_a_wrong_secret() {
    store::Endpoint endpoint = targets_.guarded;
    endpoint.secret = store::Secret::random();
    endpoint.role = noise(some_bytes(100));
    try {
      store::TcpConnection::open_once(endpoint, Deadline::after(milliseconds(500)));
    } catch (const StoreError&) {  // refused
      return;
    }
    throw std::logic_error("a wrong secret was let in");
  }

  void stay_idle() {
    std::vector<UniqueFd> crowd;
    for (std::uint64_t left = random_.below(200); left > 0; --left) crowd.push_back(connect_to(any_target()));
    dawdle(random_.below(500));
  }

  void wait_in_vain() {
    const store::Endpoint& endpoint = any_target();
    auto connection = store::TcpConnection::open_once(endpoint, brief());
    const std::string name = fmt::format("/never/{}", random_.below(8));
    const auto timeout = static_cast<std::int64_t>(random_.below(300)) - 50;
    switch (random_.below(3)) {
      case 0: connection.send(request(Op::wait_get, {{name, "/never"}, {}, timeout}), brief()); break;
      case 1: connection.send(request(Op::barrier, {{name}, {}, 1000}), brief()); break;
      default: connection.send(request(Op::wait, {{name}, {}, 0}) + requests(20), brief()); break;
    }
    dawdle(random_.below(200));
    if (random_.below(2) == 0) connection.send(request(Op::cancel_wait, {}), brief());
  }

  // A value of 8 MiB is announced, a part of it comes.
  void announce_much() {
    auto connection = store::TcpConnection::open_once(any_target(), brief());
    const std::string bytes = request(Op::set_acked, {{"/abuse/large"}, {std::string(std::size_t{8} << 20, 'v')}, 0});
    connection.send(std::string_view(bytes).substr(0, some_bytes(bytes.size() - 1)), brief());
    dawdle(random_.below(200));
  }

  void write_much() {
    store::TcpStore store(any_target(), brief(), {.request_timeout = milliseconds(500)});
    for (int i = 0; i < 20; ++i) {
      const std::string key = fmt::format("abuse/{}", random_.below(64));
      const std::string value(some_bytes(std::size_t{1} << 20), 'v');
      if (random_.below(4) == 0) {
        store.erase(key);
      } else {
        store.set(key, value);
      }
    }
  }

  void kill_a_member() {
    const store::Endpoint& endpoint = any_target();
    const int rank = static_cast<int>(random_.below(16));
    const pid_t member = ::fork();
    if (member < 0) throw SystemError("fork", errno);
    if (member == 0) {
      try {
        const membership::MemberLink link(
            endpoint, "abuse", {.rank = rank, .world_size = 16, .process = membership::ProcessInfo::of_this_process()},
            {.heartbeat = milliseconds(10)}, {}, Deadline::after(milliseconds(500)));
        ::poll(nullptr, 0, 10000);
      } catch (const Error&) {  // Its rank is taken, as it may be.
      }
      ::_exit(0);
    }
    dawdle(random_.below(50));
    ::kill(member, SIGKILL);
    while (::waitpid(member, nullptr, 0) < 0 && errno == EINTR) {
    }
  }

  struct Kind {
    const char* name;
    void (Abuser::*act)();
  };
  static constexpr std::size_t kKindCount = 13;
  static const std::array<Kind, kKindCount> kKinds;

  const Targets targets_;
  Generator random_;
  std::array<std::uint64_t, kKindCount> tries_{};
  std::array<std::uint64_t, kKindCount> done_{};  // without an error
  std::array<std::string, kKindCount> last_errors_{};
};

inline const std::array<Abuser::Kind, Abuser::kKindCount> Abuser::kKinds = {{
    {"connections dropped", &Abuser::open_and_drop},
    {"half requests", &Abuser::send_half_a_request},
    {"noise", &Abuser::send_noise},
    {"floods", &Abuser::flood},
    {"slow readers", &Abuser::read_slowly},
    {"wrong secrets", &Abuser::use_a_wrong_secret},
    {"idle crowds", &Abuser::stay_idle},
    {"waits in vain", &Abuser::wait_in_vain},
    {"large halves", &Abuser::announce_much},
    {"large writes", &Abuser::write_much},
    {"members killed", &Abuser::kill_a_member},
    {"members that flood", &Abuser::flood_as_a_member},
    {"crowds for one value", &Abuser::crowd_for_a_value},
}};

}  // namespace lockstep::soak
