// SPDX-License-Identifier: Apache-2.0
// The greeting of two ranks on a new connection, before anything else:
//
//   connecting rank  16 bytes "lockstep wire 4\n", its number in 10 decimal digits, its nonce
//   listening rank   its nonce
//   connecting rank  its proof, 32 bytes
//   listening rank   its proof, 32 bytes
//
// Nonces and proofs are the store's (runtime/store/auth.h): the HMAC-SHA256 with the job's secret of both nonces, the
// listener's ticket in place of a run's id, and "rank 3 to rank 1" in place of a role. The other side checks it before
// it reads or sends anything else, and the wire has not seen the connection by then. A job without a secret proves with
// an empty one: the ticket keeps out who can't read the job's store. The bytes after the greeting are neither encrypted
// nor signed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "lockstep/rendezvous/roster.h"
#include "proto/protocol.h"
#include "runtime/base/hmac.h"
#include "runtime/store/auth.h"

namespace lockstep::tcp {

inline constexpr std::string_view kGreeting = "lockstep wire 4\n";
inline constexpr std::size_t kHelloBytes = kGreeting.size() + 10 + proto::kNonceBytes;
inline constexpr std::size_t kProofBytes = sizeof(Sha256Mac);

// This rank, as all of its connections know it. `roster` and `epoll` outlive them.
struct OwnEnd {
  const rendezvous::Roster& roster;
  int rank = -1;
  std::shared_ptr<const store::Secret> secret = {};  // the job's; null if it has none
  int epoll = -1;                                    // watches each descriptor under its number

  // "rank 2 (host node7, pid 4711)".
  std::string describe(int one) const { return roster[static_cast<std::size_t>(one)].describe(); }
  void watch(int operation, int fd, std::uint32_t events) const;
};

std::string hello_of(int rank, std::string_view nonce);
// Both expect a complete hello. None if it is not a number.
std::optional<std::int64_t> rank_in_hello(std::string_view hello);
std::string_view nonce_in_hello(std::string_view hello);
// The proofs that the two exchange; the server's nonce is added later. `secret` may be null, and outlives the result.
store::ChallengeResponse challenge_between(int connecting, int listening, std::string_view ticket,
                                           std::string_view nonce, const store::Secret* secret);

// Sends a part of a greeting, which a fresh socket takes without a wait. Throws as net::send_all().
void send_part(int socket, std::string_view part);
// Receives what is there of a part of `bytes` bytes; true once it is complete. Throws as net::recv_now().
bool receive_part(int socket, std::size_t bytes, std::string& part);

}  // namespace lockstep::tcp
