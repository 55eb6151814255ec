// SPDX-License-Identifier: Apache-2.0
// The text that the two sides of a greeting sign with the run's secret. PROTOCOL.md says what it protects from.
#pragma once

#include <string>
#include <string_view>

namespace lockstep::proto {

enum class Prover { client, server };

// What the HMAC-SHA256 of PROVE (client) and of its reply (server) is taken over. The nonces have kNonceBytes each;
// run id and role are those of the client's HELLO.
std::string proof_text(Prover prover, std::string_view client_nonce, std::string_view server_nonce,
                       std::string_view run_id, std::string_view role);

}  // namespace lockstep::proto
