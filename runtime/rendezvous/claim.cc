#include "runtime/rendezvous/claim.h"

#include <fmt/format.h>

#include "runtime/base/error.h"
#include "runtime/rendezvous/note_lines.h"

namespace lockstep::rendezvous {

std::string encode(const Claim& claim) {
  return fmt::format(
      "lockstep claim 2\nrank {}\nlocal_rank {}\nworld_size {}\npid {}\nprocess {}\nserial {}\nhost {}\nboot_id {}\n"
      "network {}\n",
      claim.member.rank, claim.member.local_rank, claim.world_size, claim.member.pid, claim.process, claim.serial,
      claim.member.host, claim.member.boot_id, claim.member.network);
}

Claim decode_claim(std::string_view text, std::string_view key) {
  Claim claim;
  LineReader lines(text);
  const bool good = lines.take("lockstep claim") == "2" && lines.take_int("rank", 0, claim.member.rank) &&
                    lines.take_int("local_rank", -1, claim.member.local_rank) &&
                    lines.take_int("world_size", 1, claim.world_size) && lines.take_int("pid", 0, claim.member.pid) &&
                    lines.take_text("process", claim.process) && lines.take_int("serial", 0, claim.serial) &&
                    lines.take_text("host", claim.member.host) && lines.take_text("boot_id", claim.member.boot_id) &&
                    lines.take_text("network", claim.member.network) && lines.at_end();
  if (!good) {
    throw CorruptData(
        fmt::format("join: the value of {} bytes at store key '{}' is no claim of a rank of this version; "
                    "run the same build of lockstep on all ranks",
                    text.size(), key));
  }
  return claim;
}

}  // namespace lockstep::rendezvous
