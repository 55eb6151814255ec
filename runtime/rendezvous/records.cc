// SPDX-License-Identifier: Apache-2.0
#include "runtime/rendezvous/records.h"

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "runtime/base/printable.h"
#include "runtime/base/random_bytes.h"
#include "runtime/base/record.h"

namespace lockstep::rendezvous {
namespace {

// In the place of a secret that is not told.
constexpr std::string_view kGiven = "given";

std::string text_of_secret(const std::optional<store::Secret>& secret) {
  return secret ? secret->hex() : std::string(kGiven);
}

std::optional<store::Secret> secret_of_text(std::string_view text) {
  if (text == kGiven) return std::nullopt;
  return store::Secret::parse(text);
}

std::string required(std::string_view text) {
  if (text.empty()) throw InvalidArgument("it is empty");
  return std::string(text);
}

constexpr auto kAdvertisementFields = [](auto& advertisement, auto& fields) {
  fields.kind("offer 2");
  fields(
      "store", advertisement.address, [](const net::HostPort& address) { return address.to_string(); },
      [](std::string_view text) { return net::parse_host_port(text); });
  fields(
      "token", advertisement.token, [](const std::string& token) { return token; }, required);
  fields("secret", advertisement.secret, text_of_secret, secret_of_text);
};

constexpr auto kNoteFields = [](auto& note, auto& fields) {
  kAdvertisementFields(note, fields);
  fields("run", note.run);
  fields("host", note.host);
  fields("boot_id", note.boot_id);
  fields("pid_namespace", note.pid_namespace);
  fields("pid", note.pid, 1);
  fields("start", note.start, std::int64_t{0});
};

constexpr auto kClaimFields = [](auto& claim, auto& fields) {
  fields.kind("claim 2");
  fields("rank", claim.member.rank, 0);
  fields("local_rank", claim.member.local_rank, -1);
  fields("world_size", claim.world_size, 1);
  fields("pid", claim.member.pid, 0);
  fields("process", claim.process);
  fields("serial", claim.serial, 0);
  fields("host", claim.member.host);
  fields("boot_id", claim.member.boot_id);
  fields("network", claim.member.network);
};

}  // namespace

std::string random_token() { return random_hex(16); }

std::string encode(const StoreAdvertisement& advertisement) {
  return write_record(advertisement, kAdvertisementFields);
}
std::string encode(const MeetingNote& note) { return write_record(note, kNoteFields); }
std::string encode(const Claim& claim) { return write_record(claim, kClaimFields); }

StoreAdvertisement decode_advertisement(std::string_view text, std::string_view found_at) {
  if (auto advertisement = read_record<StoreAdvertisement>(text, kAdvertisementFields))
    return *std::move(advertisement);
  throw CorruptData(fmt::format(
      "rendezvous: {} holds {} bytes that are not the address of a store; run the same build of lockstep on all ranks",
      found_at, text.size()));
}

MeetingNote decode_note(std::string_view text, const std::string& path) {
  if (auto note = read_record<MeetingNote>(text, kNoteFields)) return *std::move(note);
  throw CorruptData(
      fmt::format("init_method file://{}: there is a file of {} bytes that lockstep did not write, and lockstep leaves "
                  "this file as it is; give a path that does not exist yet",
                  path, text.size()));
}

Claim decode_claim(std::string_view text, std::string_view key) {
  if (auto claim = read_record<Claim>(text, kClaimFields)) return *std::move(claim);
  throw CorruptData(
      fmt::format("join: the value of {} bytes at store key '{}' is not a claim of a rank of this version; "
                  "run the same build of lockstep on all ranks",
                  text.size(), key));
}

std::string MeetingNote::writer() const { return fmt::format("pid {} on host {}", pid, printable(host)); }

}  // namespace lockstep::rendezvous
