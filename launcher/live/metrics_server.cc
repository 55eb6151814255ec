// SPDX-License-Identifier: Apache-2.0
#include "launcher/live/metrics_server.h"

#include <chrono>
#include <string_view>
#include <utility>

#include "launcher/live/metrics_text.h"
#include "runtime/net/tcp_socket.h"

namespace lockstep::launcher {

MetricsServer::MetricsServer(const net::HostPort& where, std::function<LiveReport()> report)
    : MetricsServer(net::tcp_listen(where), std::move(report)) {}

MetricsServer::MetricsServer(UniqueFd listener, std::function<LiveReport()> report)
    : address_(net::local_address(listener.get())),
      server_(std::move(listener),
              {.end_of_request = "\r\n\r\n",
               .most_request_bytes = 16 * 1024,
               .most_clients = 16,
               .client_limit = std::chrono::seconds(10),
               .ended = "--metrics-port no longer answers",
               .failed = "--metrics-port left requests without an answer",
               .accept = net::tcp_try_accept,
               .answer = [report = std::move(report)](std::string_view request) {
                 return RequestServer::text(http_answer(request.substr(0, request.find("\r\n")), report()));
               }}) {}

}  // namespace lockstep::launcher
