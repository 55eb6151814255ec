// SPDX-License-Identifier: Apache-2.0
// Records that ranks exchange while they meet, as text. Pure.
//
// encode() writes a record (base/record.h); decode throws CorruptData, with where the text was found, for any other.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "lockstep/rendezvous/roster.h"
#include "runtime/net/address.h"
#include "runtime/store/secret.h"

namespace lockstep::rendezvous {

// Rank 0's announcement of the store that it hosts.
struct StoreAdvertisement {
  net::HostPort address;
  std::string token;                         // tells this store from every other; the store knows it too (kTokenKey)
  std::optional<store::Secret> secret = {};  // nothing: the one that every rank was given (MeetingPlan::secret)
};

// A token: 128 random bits in hexadecimal digits.
std::string random_token();

// With the secret in it, if there is one: for those who may know it, never for a log.
std::string encode(const StoreAdvertisement& advertisement);
// The error says where the text was found and not what it is.
StoreAdvertisement decode_advertisement(std::string_view text, std::string_view found_at);

// An advertisement in a file, and who wrote it.
struct MeetingNote : StoreAdvertisement {
  std::string run;            // run id and attempt, as far as the launcher gave any
  std::string host;           // the writer's, for people
  std::string boot_id;        // the writer's
  std::string pid_namespace;  // the writer's
  int pid = 0;                // the writer
  std::int64_t start = 0;  // when the writer started, in the kernel's ticks: tells it from a later process of its pid

  // "pid 4711 on host node7".
  std::string writer() const;
};

std::string encode(const MeetingNote& note);
MeetingNote decode_note(std::string_view text, const std::string& path);

// A rank's place in the roster, as it claims it in the store.
struct Claim {
  Member member;
  int world_size = 1;
  std::string process;  // equal exactly in claims of one process; random, so that pids of two containers don't collide
  int serial = 0;       // tells the claims of one process apart
};

std::string encode(const Claim& claim);
Claim decode_claim(std::string_view text, std::string_view key);

}  // namespace lockstep::rendezvous
