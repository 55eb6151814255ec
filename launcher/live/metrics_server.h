// SPDX-License-Identifier: Apache-2.0
// The server of --metrics-port: answers GET /metrics over HTTP, with a thread of its own. It has no secret and accepts
// no data, so it listens on loopback unless another address is given.
#pragma once

#include <functional>

#include "launcher/live/live_report.h"
#include "launcher/live/request_server.h"
#include "runtime/base/unique_fd.h"
#include "runtime/net/address.h"

namespace lockstep::launcher {

class MetricsServer {
 public:
  // `report` is called by the server's thread and outlives it. Throws InvalidArgument and SystemError as tcp_listen()
  // does.
  MetricsServer(const net::HostPort& where, std::function<LiveReport()> report);

  const net::HostPort& address() const { return address_; }

 private:
  MetricsServer(UniqueFd listener, std::function<LiveReport()> report);

  const net::HostPort address_;
  RequestServer server_;
};

}  // namespace lockstep::launcher
