// What rank 0 tells the other ranks of the store that it hosts.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "runtime/net/address.h"
#include "runtime/store/secret.h"

namespace lockstep::rendezvous {

struct Offer {
  net::HostPort address;
  std::string token;                    // tells this store from every other; the store knows it too (kTokenKey)
  std::optional<store::Secret> secret;  // nothing: the one that every rank was given (MeetingPlan::secret)
};

// One line, with the secret in it, if there is one: for those who may know it, never for a log.
std::string encode(const Offer& offer);
// Throws CorruptData, which says where it was found and not what it is.
Offer decode_offer(std::string_view text, std::string_view found_at);

}  // namespace lockstep::rendezvous
