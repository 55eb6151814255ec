// SPDX-License-Identifier: Apache-2.0
// The server of --metrics-port: answers GET /metrics over HTTP, with a thread of its own. It has no secret and accepts
// no data, so it listens on loopback unless another address is given.
#pragma once

#include <exception>
#include <functional>
#include <map>
#include <string>
#include <thread>

#include "launcher/live/live_report.h"
#include "runtime/base/unique_fd.h"
#include "runtime/net/address.h"
#include "runtime/net/event_loop.h"
#include "runtime/net/tcp_socket.h"

namespace lockstep::launcher {

class MetricsServer {
 public:
  // `report` is called by the server's thread and outlives it. Throws InvalidArgument and SystemError as tcp_listen()
  // does.
  MetricsServer(const net::HostPort& where, std::function<LiveReport()> report);
  ~MetricsServer();
  MetricsServer(const MetricsServer&) = delete;
  MetricsServer& operator=(const MetricsServer&) = delete;

  net::HostPort address() const { return net::local_address(listener_.get()); }

 private:
  struct Session {
    UniqueFd fd;
    std::string request = {};
    std::string out = {};
    bool is_answered = false;
    net::EventLoop::TimerId limit = {};
  };

  void serve();
  // Ends all sessions, since an error in one of them must not end the launcher. Logs the first error.
  void on_error(const std::exception& error);
  void accept();
  void close_session(int fd);
  // The next functions return false once the session is over.
  bool proceed(Session& session);
  bool read_request(Session& session);
  bool send(Session& session);

  const std::function<LiveReport()> report_;
  UniqueFd listener_;
  net::EventLoop loop_;
  std::map<int, Session> sessions_;  // by descriptor
  bool has_failed_ = false;
  std::thread thread_;  // declared last: the thread uses the other members
};

}  // namespace lockstep::launcher
