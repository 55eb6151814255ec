#include "runtime/base/cause.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "runtime/base/environment.h"
#include "runtime/base/error.h"
#include "runtime/base/printable.h"

namespace lockstep {
namespace {

constexpr std::string_view kMore = " ...";
constexpr std::size_t kMostHostBytes = 255;

constexpr std::array<std::string_view, 7> kKinds{"lost", "silent", "left", "failed", "aborted", "timeout", "mismatch"};

// Not within a character of UTF-8.
std::string cut(std::string text, std::size_t most) {
  if (text.size() <= most) return text;
  std::size_t end = most - kMore.size();
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return text.substr(0, end).append(kMore);
}

template <typename Integer>
bool take_number(Integer& field, std::string_view value) {
  const auto number = parse_int(value);
  if (!number || *number < std::numeric_limits<Integer>::min() || *number > std::numeric_limits<Integer>::max()) {
    return false;
  }
  field = static_cast<Integer>(*number);
  return true;
}

bool take(Cause& cause, std::string_view name, std::string_view value) {
  if (name == "kind") {
    const auto found = std::find(kKinds.begin(), kKinds.end(), value);
    if (found == kKinds.end()) return false;
    cause.kind = static_cast<Cause::Kind>(found - kKinds.begin() + 1);
    return true;
  }
  if (name == "host") {
    if (value.size() > kMostHostBytes) return false;
    cause.host = printable_lines(value);
    return true;
  }
  if (name == "rank") return take_number(cause.rank, value);
  if (name == "reporter") return take_number(cause.reporter, value);
  if (name == "pid") return take_number(cause.pid, value);
  if (name == "generation") return take_number(cause.generation, value);
  if (name == "step") return take_number(cause.step, value);
  if (name == "bucket") return take_number(cause.bucket, value);
  if (name == "sequence") return take_number(cause.sequence, value);
  if (name == "errno") return take_number(cause.error_number, value);
  if (name == "signal") return take_number(cause.signal, value);
  if (name == "ends_group") {
    cause.ends_group = value != "0";
    return value == "0" || value == "1";
  }
  return true;
}

}  // namespace

std::string_view name_of(Cause::Kind kind) { return kKinds[static_cast<std::size_t>(kind) - 1]; }

Cause Cause::as_read_by(int own) const {
  Cause result = *this;
  if (rank == own && reporter != own) result.text = "the other ranks have given this one up: " + text;
  return result;
}

std::string encode(const Cause& cause, std::size_t most_bytes) {
  std::string host = printable_lines(cause.host).substr(0, kMostHostBytes);
  std::replace(host.begin(), host.end(), '\n', '?');
  std::string bytes = fmt::format(
      "kind {}\nrank {}\nreporter {}\nhost {}\npid {}\ngeneration {}\nstep {}\nbucket {}\nsequence {}\nerrno {}\n"
      "signal {}\nends_group {}\ntext ",
      name_of(cause.kind), cause.rank, cause.reporter, host, cause.pid, cause.generation, cause.step, cause.bucket,
      cause.sequence, cause.error_number, cause.signal, cause.ends_group ? 1 : 0);
  return bytes + cut(printable_lines(cause.text), most_bytes - bytes.size());
}

std::optional<Cause> decode_cause(std::string_view bytes) {
  Cause cause;
  if (!bytes.starts_with("kind ")) return std::nullopt;
  while (true) {
    const auto space = bytes.find(' ');
    if (space == std::string_view::npos) return std::nullopt;
    const std::string_view name = bytes.substr(0, space);
    bytes.remove_prefix(space + 1);
    if (name == "text") {
      cause.text = printable_lines(bytes);
      return cause;
    }
    const auto end = bytes.find('\n');
    if (end == std::string_view::npos || !take(cause, name, bytes.substr(0, end))) return std::nullopt;
    bytes.remove_prefix(end + 1);
  }
}

namespace {

template <typename What>
[[noreturn]] void throw_like(const Error& error, const What& what) {
  if (dynamic_cast<const Timeout*>(&error) != nullptr) throw Timeout(what);
  if (dynamic_cast<const Mismatch*>(&error) != nullptr) throw Mismatch(what);
  if (dynamic_cast<const PeerLost*>(&error) != nullptr) throw PeerLost(what);
  throw;
}

}  // namespace

void throw_again(const Error& error, std::string text, std::int64_t step, int bucket) {
  if (error.cause() == nullptr) throw_like(error, text);
  Cause cause = *error.cause();
  cause.text = std::move(text);
  if (cause.step < 0) cause.step = step;
  if (cause.bucket < 0) cause.bucket = bucket;
  throw_like(error, cause);
}

void throw_error(const Cause& cause) {
  switch (cause.kind) {
    case Cause::Kind::timeout: throw Timeout(cause);
    case Cause::Kind::mismatch: throw Mismatch(cause);
    case Cause::Kind::lost:
    case Cause::Kind::silent:
    case Cause::Kind::left:
    case Cause::Kind::failed:
    case Cause::Kind::aborted: break;
  }
  throw PeerLost(cause);
}

}  // namespace lockstep
