// SPDX-License-Identifier: Apache-2.0
// Parsers of flag values. Each parse_ function returns nullopt for a text that it rejects; the caller reports what it
// expects.
#pragma once

#include <fmt/format.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"

namespace lockstep::launcher {

// The most ranks that one host starts: a typing error must not become a fork bomb.
inline constexpr int kMaxRanks = 1024;

// Parses "0.7": from 0 to 86400 seconds.
std::optional<std::chrono::milliseconds> parse_seconds(const std::string& text);
// The same without 0.
std::optional<std::chrono::milliseconds> parse_seconds_above_0(const std::string& text);
inline constexpr const char* kSecondsAbove0 = "give seconds above 0 and at most 86400";
// Parses "512M", "1G", "64K", "8192": bytes, at least 1, in powers of 1024.
std::optional<std::size_t> parse_bytes(std::string_view text);
// Parses a port from 0 to 65535.
std::optional<std::uint16_t> parse_port(std::string_view text);
// Parses a whole number from `least` to `most`.
std::optional<std::int64_t> parse_count(std::string_view text, std::int64_t most, std::int64_t least = 1);
inline auto up_to(std::int64_t most, std::int64_t least = 1) {
  return [most, least](std::string_view text) { return parse_count(text, most, least); };
}

// Returns "; did you mean top?" for a word that resembles one of `names`; else an empty string.
std::string meant(std::string_view word, std::span<const std::string_view> names);

template <typename... Arguments>
[[noreturn]] void refuse(fmt::format_string<Arguments...> text, Arguments&&... arguments) {
  throw InvalidArgument(fmt::format(text, std::forward<Arguments>(arguments)...));
}
// Returns the value of a flag that was given as `text`; throws InvalidArgument "FLAG TEXT: WANTED" if the text was
// rejected.
template <typename Value>
Value required(std::optional<Value> value, std::string_view flag, std::string_view text, std::string_view wanted) {
  if (!value) refuse("{} {}: {}", flag, text, wanted);
  return *std::move(value);
}
// Returns the result of `parse`. An InvalidArgument that `parse` throws gets "FLAG: " in front.
template <typename Parse>
auto parsed_as(std::string_view flag, Parse parse) {
  try {
    return parse();
  } catch (const InvalidArgument& error) {
    refuse("{}: {}", flag, error.what());
  }
}

// The flag --tee: the streams of a rank that are shown on the console in addition to their files, numbered as in
// torchrun.
struct Tee {
  bool out = false;
  bool err = false;

  // Parses "0", "1", "2" or "3"; nullopt for another text.
  static std::optional<Tee> parse(std::string_view text);
};

enum class Binding { none, core, numa };

// Parses "core", "numa" or "none".
std::optional<Binding> parse_binding(std::string_view text);

// Parses "0,3" or "GPU-5f2c...,GPU-9a01..." into its entries, each an index or a UUID.
std::optional<std::vector<std::string>> parse_devices(std::string_view text);
// Returns true for "GPU-..." and "MIG-...", complete or a prefix.
bool is_gpu_uuid(std::string_view entry);

// A set of ranks as flags write it: "0,3" or "0-2,7".
class RankSet {
 public:
  // Makes the set of all ranks.
  RankSet() = default;
  // Parses numbers and ranges, with ',' between them; a range names its lower rank first. Returns nullopt for any other
  // text.
  static std::optional<RankSet> parse(std::string_view text);

  // Returns the text that was parsed.
  const std::string& text() const { return text_; }
  bool is_all() const { return ranges_.empty(); }
  bool contains(int rank) const;
  // Returns true if a job of `ranks` ranks, from 0, has every rank that is named.
  bool fits(int ranks) const;

 private:
  std::string text_;
  std::vector<std::pair<int, int>> ranges_;  // first and last rank of each
};

}  // namespace lockstep::launcher
