// SPDX-License-Identifier: Apache-2.0
// Parsers of flag values. Each parse_ function returns nullopt for a text that it rejects; the caller reports what it
// expects.
#pragma once

#include <fmt/format.h>
#include <CLI/App.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"

namespace lockstep::launcher {

// Parses "0.7": from 0 to 86400 seconds.
std::optional<std::chrono::milliseconds> parse_seconds(const std::string& text);
// Parses "512M", "1G", "64K", "8192": bytes, at least 1, in powers of 1024.
std::optional<std::size_t> parse_bytes(std::string_view text);
// Parses a port from 0 to 65535.
std::optional<std::uint16_t> parse_port(std::string_view text);
// Parses a whole number from `least` to `most`.
std::optional<std::int64_t> parse_count(std::string_view text, std::int64_t most, std::int64_t least = 1);
inline auto up_to(std::int64_t most, std::int64_t least = 1) {
  return [most, least](std::string_view text) { return parse_count(text, most, least); };
}

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
// Sets `target` to the value of a flag that was given. `parse` returns nullopt for a text that it rejects.
template <typename Target, typename Parse>
void read_flag(std::string_view flag, const std::string& text, Target& target, Parse parse, std::string_view wanted) {
  if (!text.empty()) target = static_cast<Target>(required(parse(text), flag, text, wanted));
}
std::chrono::milliseconds seconds_above_0(std::string_view flag, const std::string& text);
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

// For flags whose value is optional and that stand in front of PROGRAM, which CLI11 would take for the value.
// `arguments` are a subcommand's name and the words behind it. Inserts `value` behind each of `names` that is not
// followed by a number or an empty word, among the flags and their values in front of the first other word.
void complete_optional_value(const CLI::App& app, const std::vector<std::string>& names, const std::string& value,
                             std::vector<std::string>& arguments);

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
