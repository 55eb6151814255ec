// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/tcp/greeting.h"

#include <fmt/format.h>

#include <array>
#include <span>

#include "runtime/base/random_bytes.h"
#include "runtime/net/stream.h"

namespace lockstep::tcp {

std::string random_draw() {
  std::string bytes(kDrawBytes, '\0');
  fill_random(std::as_writable_bytes(std::span(bytes)));
  return bytes;
}

std::string wire_hello(int rank, std::string_view draw) {
  std::string bytes(kWireGreeting);
  for (int i = 0; i < 4; ++i) bytes += static_cast<char>(static_cast<unsigned>(rank) >> (8 * i) & 0xff);
  return bytes.append(draw);
}

std::uint32_t rank_in_hello(std::string_view hello) {
  std::uint32_t rank = 0;
  for (std::size_t i = 0; i < 4; ++i) {
    rank |= static_cast<std::uint32_t>(static_cast<unsigned char>(hello[kWireGreeting.size() + i])) << (8 * i);
  }
  return rank;
}

std::string_view draw_in_hello(std::string_view hello) { return hello.substr(kHelloBytes - kDrawBytes, kDrawBytes); }

std::string wire_proof(const store::Secret* secret, proto::Prover prover, std::string_view draw_of_connecting,
                       std::string_view draw_of_listening, std::string_view ticket, int connecting, int listening) {
  static constexpr std::array<std::byte, store::Secret::kBytes> kNone{};
  const std::string text = proto::proof_text(prover, draw_of_connecting, draw_of_listening, ticket,
                                             fmt::format("rank {} to rank {}", connecting, listening));
  const std::string_view part = text;
  const std::span<const std::byte> key = secret == nullptr ? std::span<const std::byte>(kNone) : secret->bytes();
  const Sha256Mac mac = hmac_sha256(key, std::span(&part, 1));
  return {reinterpret_cast<const char*>(mac.data()), mac.size()};
}

void send_part(int socket, std::string_view part) { net::send_all(socket, part, Deadline::after({})); }

bool is_proof(std::string_view bytes, std::string_view wanted) {
  return equal_in_constant_time(std::as_bytes(std::span(bytes)), std::as_bytes(std::span(wanted)));
}

}  // namespace lockstep::tcp
