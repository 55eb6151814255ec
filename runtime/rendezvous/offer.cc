#include "runtime/rendezvous/offer.h"

#include <fmt/format.h>

#include "runtime/base/error.h"

namespace lockstep::rendezvous {
namespace {

constexpr std::string_view kVersion = "lockstep-1";

// In the place of a secret that is not told.
constexpr std::string_view kGiven = "given";

std::string_view take_word(std::string_view& text) {
  const std::string_view word = text.substr(0, text.find(' '));
  text.remove_prefix(std::min(text.size(), word.size() + 1));
  return word;
}

}  // namespace

std::string encode(const Offer& offer) {
  return fmt::format("{} {} {} {}", kVersion, offer.address.to_string(), offer.token,
                     offer.secret ? offer.secret->hex() : std::string(kGiven));
}

Offer decode_offer(std::string_view text, std::string_view found_at) {
  const std::size_t size = text.size();
  try {
    if (take_word(text) != kVersion) throw InvalidArgument("another version");
    const std::string_view address = take_word(text);
    const std::string_view token = take_word(text);
    const std::string_view secret = take_word(text);
    Offer offer{.address = net::parse_host_port(address), .token = std::string(token), .secret = {}};
    if (secret != kGiven) offer.secret = store::Secret::parse(secret);
    if (!offer.token.empty() && text.empty()) return offer;
  } catch (const InvalidArgument&) {
  }
  throw CorruptData(
      fmt::format("rendezvous: {}: {} bytes that don't say where a store is; run the same build of lockstep on all "
                  "ranks",
                  found_at, size));
}

}  // namespace lockstep::rendezvous
