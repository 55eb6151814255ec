// A rank's claim as text in the store. Pure.
#pragma once

#include <string>
#include <string_view>

#include "runtime/rendezvous/roster.h"

namespace lockstep::rendezvous {

struct Claim {
  Member member;
  int world_size = 1;
  std::string process;  // equal exactly in claims of one process; random, so that pids of two containers don't collide
  int serial = 0;       // tells the claims of one process apart
};

// Lines "name value". Throws CorruptData, with the key it was found at, for anything that encode() does not write.
std::string encode(const Claim& claim);
Claim decode_claim(std::string_view text, std::string_view key);

}  // namespace lockstep::rendezvous
