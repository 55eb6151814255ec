// SPDX-License-Identifier: Apache-2.0
#include "proto/proof.h"

#include "proto/fields.h"

namespace lockstep::proto {

std::string proof_text(Prover prover, std::string_view client_nonce, std::string_view server_nonce,
                       std::string_view run_id, std::string_view role) {
  constexpr Field kNamed[] = {Field::value, Field::value};
  std::string text = prover == Prover::client ? "lockstep client" : "lockstep server";
  text.push_back('\0');
  text.append(client_nonce);
  text.append(server_nonce);
  write_fields(text, kNamed, {{}, {run_id, role}, 0});
  return text;
}

}  // namespace lockstep::proto
