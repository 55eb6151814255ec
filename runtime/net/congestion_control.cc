// SPDX-License-Identifier: Apache-2.0
#include "runtime/net/congestion_control.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace lockstep::net {
namespace {

constexpr std::size_t kMostLetters = 16;  // TCP_CA_NAME_MAX

// Empty where the kernel does not say: not every sandbox has all of Linux's TCP.
std::string name_of(int socket) {
  std::array<char, kMostLetters + 1> name{};
  socklen_t size = kMostLetters;
  if (::getsockopt(socket, IPPROTO_TCP, TCP_CONGESTION, name.data(), &size) != 0) return {};
  return name.data();
}

// The shortest so far, the least disturbed by processes that had no core. Where the kernel does not say: long.
std::chrono::microseconds round_trip_of(int socket) {
  // tcpi_min_rtt of <linux/tcp.h>, which no source can include beside <netinet/tcp.h>; the C library's tcp_info ends
  // before it.
  constexpr std::size_t kAt = 148;
  std::uint32_t least = 0;
  std::array<std::byte, kAt + sizeof least> info{};
  socklen_t size = info.size();
  if (::getsockopt(socket, IPPROTO_TCP, TCP_INFO, info.data(), &size) != 0 || size < info.size()) {
    return std::chrono::microseconds::max();
  }
  std::memcpy(&least, info.data() + kAt, sizeof least);
  return least == 0 ? std::chrono::microseconds::max() : std::chrono::microseconds(least);
}

}  // namespace

bool takes_reno(std::string_view current, std::chrono::microseconds round_trip) {
  return current.starts_with("bbr") && round_trip < kNear;
}

std::string choose_congestion_control(int socket) {
  constexpr std::string_view kReno = "reno";
  const std::string current = name_of(socket);
  if (!takes_reno(current, round_trip_of(socket))) return current;
  const bool is_granted = ::setsockopt(socket, IPPROTO_TCP, TCP_CONGESTION, kReno.data(), kReno.size()) == 0;
  return is_granted ? std::string(kReno) : current;
}

}  // namespace lockstep::net
