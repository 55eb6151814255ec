#include "runtime/rendezvous/claim.h"

#include <fmt/format.h>

#include <climits>
#include <optional>

#include "runtime/base/environment.h"
#include "runtime/base/error.h"

namespace lockstep::rendezvous {
namespace {

// The value of the next line, which must be `name`'s.
std::optional<std::string_view> take(std::string_view& text, std::string_view name) {
  const auto end = text.find('\n');
  if (end == std::string_view::npos) return std::nullopt;
  std::string_view line = text.substr(0, end);
  text.remove_prefix(end + 1);
  if (!line.starts_with(name) || line.size() <= name.size() || line[name.size()] != ' ') return std::nullopt;
  return line.substr(name.size() + 1);
}

bool take_int(std::string_view& text, std::string_view name, std::int64_t low, int& result) {
  const auto value = take(text, name);
  const auto number = value ? parse_int(*value) : std::nullopt;
  if (!number || *number < low || *number > INT_MAX) return false;
  result = static_cast<int>(*number);
  return true;
}

bool take_text(std::string_view& text, std::string_view name, std::string& result) {
  const auto value = take(text, name);
  if (!value) return false;
  result = *value;
  return true;
}

}  // namespace

std::string encode(const Claim& claim) {
  return fmt::format(
      "lockstep claim 1\nrank {}\nlocal_rank {}\nworld_size {}\npid {}\nprocess {}\nserial {}\nhost {}\nboot_id {}\n",
      claim.member.rank, claim.member.local_rank, claim.world_size, claim.member.pid, claim.process, claim.serial,
      claim.member.host, claim.member.boot_id);
}

Claim decode_claim(std::string_view text, std::string_view key) {
  Claim claim;
  std::string_view rest = text;
  const bool good = take(rest, "lockstep claim") == "1" && take_int(rest, "rank", 0, claim.member.rank) &&
                    take_int(rest, "local_rank", -1, claim.member.local_rank) &&
                    take_int(rest, "world_size", 1, claim.world_size) && take_int(rest, "pid", 0, claim.member.pid) &&
                    take_text(rest, "process", claim.process) && take_int(rest, "serial", 0, claim.serial) &&
                    take_text(rest, "host", claim.member.host) && take_text(rest, "boot_id", claim.member.boot_id) &&
                    rest.empty();
  if (!good) {
    throw CorruptData(
        fmt::format("join: the value of {} bytes at store key '{}' is no claim of a rank of this version; "
                    "run the same build of lockstep on all ranks",
                    text.size(), key));
  }
  return claim;
}

}  // namespace lockstep::rendezvous
