// SPDX-License-Identifier: Apache-2.0
// Client processes of one measurement, in step with each other and with the process that hosts the server.
//
// They are forked before the server exists, because its thread would not be forked with them. One thread.
#pragma once

#include <sys/types.h>

#include <functional>
#include <span>
#include <vector>

#include "runtime/base/unique_fd.h"
#include "runtime/net/address.h"

namespace lockstep::bench {

// Seconds of the clock that all processes of a machine share.
double now();

class Clients {
 public:
  // What a client does: get ready to be measured, call `gate`, which returns for all of them at once, work, and leave
  // what it measured in `results`.
  using Body = std::function<void(int index, const net::HostPort& server, const std::function<void()>& gate,
                                  std::span<double> results)>;

  // Forks `count` processes. The process must have one thread.
  Clients(int count, std::size_t results_each, const Body& body);
  // Kills what still runs.
  ~Clients();
  Clients(const Clients&) = delete;
  Clients& operator=(const Clients&) = delete;

  // Tells them where the server is, which lets them get ready.
  void start(const net::HostPort& server);
  // Waits until all are at the gate.
  void await_ready();
  // Opens the gate.
  void go();
  // Kills one, which finish() does not wait for, and waits for its end.
  void kill_one(int index);
  // Waits for their ends, and throws if one failed. One row of results per client.
  std::vector<std::vector<double>> finish();

 private:
  [[noreturn]] void run(int index, const Body& body);

  std::size_t results_each_;
  double* shared_ = nullptr;  // mapped by all: the server's port, then the results
  std::size_t shared_bytes_ = 0;
  std::vector<pid_t> pids_;
  // Pipes: closed by us, they let the clients on; of `ready` each client writes a byte.
  UniqueFd started_[2], ready_[2], gate_[2];
};

}  // namespace lockstep::bench
