// SPDX-License-Identifier: Apache-2.0
// The greeting of two ranks on a new connection, before anything else:
//
//   connecting rank  16 bytes "lockstep wire 3\n", its number (4 bytes, least first), 32 bytes drawn by chance
//   listening rank   32 bytes drawn by chance
//   connecting rank  its proof, 32 bytes
//   listening rank   its proof, 32 bytes
//
// A proof is the HMAC-SHA256 with the job's secret of proto/proof.h's text: both draws, the listener's ticket in place
// of a run's id, and "rank 3 to rank 1" in place of a role. The other side checks it before it reads or sends anything
// else, and the wire has not seen the connection by then. A job without a secret proves with an empty one: the ticket
// keeps out who can't read the job's store. The bytes behind the greeting are neither encrypted nor signed.
#pragma once

#include <string>
#include <string_view>

#include "proto/proof.h"
#include "runtime/base/hmac.h"
#include "runtime/store/secret.h"

namespace lockstep::tcp {

inline constexpr std::string_view kWireGreeting = "lockstep wire 3\n";
inline constexpr std::size_t kDrawBytes = 32;
inline constexpr std::size_t kHelloBytes = kWireGreeting.size() + 4 + kDrawBytes;
inline constexpr std::size_t kProofBytes = sizeof(Sha256Mac);

std::string random_draw();
std::string wire_hello(int rank, std::string_view draw);
// Both expect a complete hello.
std::uint32_t rank_in_hello(std::string_view hello);
std::string_view draw_in_hello(std::string_view hello);
std::string wire_proof(const store::Secret* secret, proto::Prover prover, std::string_view draw_of_connecting,
                       std::string_view draw_of_listening, std::string_view ticket, int connecting, int listening);
// Sends a part of a greeting, which a fresh socket takes without a wait. Throws as net::send_all().
void send_part(int socket, std::string_view part);
// In constant time.
bool is_proof(std::string_view bytes, std::string_view wanted);

}  // namespace lockstep::tcp
