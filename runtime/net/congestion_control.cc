// SPDX-License-Identifier: Apache-2.0
#include "runtime/net/congestion_control.h"

#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <fstream>

#include "lockstep/base/error.h"
#include "runtime/base/printable.h"
#include "runtime/base/unique_fd.h"

namespace lockstep::net {
namespace {

constexpr std::size_t kMostLetters = 16;  // TCP_CA_NAME_MAX

bool grants(int socket, const std::string& name) {
  return ::setsockopt(socket, IPPROTO_TCP, TCP_CONGESTION, name.data(), static_cast<socklen_t>(name.size())) == 0;
}

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

std::string allowed() {
  std::ifstream file("/proc/sys/net/ipv4/tcp_allowed_congestion_control");
  std::string names;
  return std::getline(file, names) ? names : "reno";
}

}  // namespace

CongestionControl CongestionControl::of(const Environment& environment) {
  CongestionControl control(environment.get("LOCKSTEP_TCP_CONGESTION").value_or("auto"));
  if (control.name_ == "auto" || control.name_ == "system") return control;
  const UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket) throw SystemError("socket", errno);
  if (!grants(socket.get(), control.name_)) {
    throw InvalidArgument(
        fmt::format("environment: LOCKSTEP_TCP_CONGESTION='{}' is not a congestion control that the kernel lets this "
                    "process take; auto, system, or one of those that every process may take: {}",
                    printable(control.name_), allowed()));
  }
  return control;
}

std::optional<std::string> CongestionControl::instead_of(std::string_view current,
                                                         std::chrono::microseconds round_trip) const {
  if (name_ == "system" || current == name_) return std::nullopt;
  if (name_ != "auto") return name_;
  if (!current.starts_with("bbr") || round_trip >= kNear) return std::nullopt;
  return "reno";
}

std::string CongestionControl::apply(int socket) const {
  const std::string current = name_of(socket);
  const auto other = instead_of(current, round_trip_of(socket));
  if (!other) return current;
  if (grants(socket, *other)) return *other;
  if (name_ != "auto") throw SystemError(fmt::format("setsockopt(TCP_CONGESTION, {})", *other), errno);
  return current;
}

}  // namespace lockstep::net
