// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/tcp/greeting.h"

#include <fmt/format.h>

#include <span>

#include "lockstep/base/environment.h"
#include "runtime/net/epoll.h"
#include "runtime/net/stream.h"

namespace lockstep::tcp {

void OwnEnd::watch(int operation, int fd, std::uint32_t events) const {
  net::watch(epoll, operation, fd, events, static_cast<std::uint64_t>(fd));
}

std::string hello_of(int rank, std::string_view nonce) { return fmt::format("{}{:010}{}", kGreeting, rank, nonce); }

std::optional<std::int64_t> rank_in_hello(std::string_view hello) {
  return parse_int(hello.substr(kGreeting.size(), kHelloBytes - kGreeting.size() - proto::kNonceBytes));
}

std::string_view nonce_in_hello(std::string_view hello) { return hello.substr(kHelloBytes - proto::kNonceBytes); }

store::ChallengeResponse challenge_between(int connecting, int listening, std::string_view ticket,
                                           std::string_view nonce, const store::Secret* secret) {
  return {.secret = secret,
          .run_id = std::string(ticket),
          .role = fmt::format("rank {} to rank {}", connecting, listening),
          .client_nonce = std::string(nonce)};
}

void send_part(int socket, std::string_view part) { net::send_all(socket, part, Deadline::after({})); }

bool receive_part(int socket, std::size_t bytes, std::string& part) {
  const std::size_t begin = part.size();
  part.resize(bytes);
  part.resize(begin + net::recv_now(socket, std::as_writable_bytes(std::span(part)).subspan(begin)));
  return part.size() == bytes;
}

}  // namespace lockstep::tcp
