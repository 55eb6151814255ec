// SPDX-License-Identifier: Apache-2.0
#include "lockstep/job/cause.h"

#include <algorithm>
#include <array>

#include "lockstep/base/error.h"
#include "runtime/base/printable.h"
#include "runtime/base/record.h"

namespace lockstep {
namespace {

constexpr std::string_view kMore = " ...";
constexpr std::size_t kMostHostBytes = 255;

constexpr std::array<std::string_view, 8> kKinds{"lost",    "silent",  "left",     "failed",
                                                 "aborted", "timeout", "mismatch", "stopped"};

// Not within a character of UTF-8.
std::string cut(std::string text, std::size_t most) {
  if (text.size() <= most) return text;
  std::size_t end = most - kMore.size();
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return text.substr(0, end).append(kMore);
}

Cause::Kind kind_of(std::string_view name) {
  const auto found = std::find(kKinds.begin(), kKinds.end(), name);
  if (found == kKinds.end()) throw InvalidArgument("no kind of cause");
  return static_cast<Cause::Kind>(found - kKinds.begin() + 1);
}

std::string on_one_line(std::string_view host) {
  std::string text = printable_lines(host);
  std::ranges::replace(text, '\n', '?');
  return text;
}

std::string host_to_text(const std::string& host) { return on_one_line(host).substr(0, kMostHostBytes); }

std::string host_of_text(std::string_view text) {
  if (text.size() > kMostHostBytes) throw InvalidArgument("too long");
  return on_one_line(text);
}

constexpr auto kFields = [](auto& cause, auto& fields) {
  fields("kind", cause.kind, name_of, kind_of);
  fields("rank", cause.rank);
  fields("reporter", cause.reporter);
  fields("host", cause.host, host_to_text, host_of_text);
  fields("pid", cause.pid);
  fields("restarts", cause.restarts);
  fields("step", cause.step);
  fields("bucket", cause.bucket);
  fields("sequence", cause.sequence);
  fields("errno", cause.error_number);
  fields("signal", cause.signal);
  fields("ends_group", cause.ends_group);
  fields("text", cause.text, printable_lines, printable_lines);  // last, for it is what encode() cuts
};

}  // namespace

std::string_view name_of(Cause::Kind kind) { return kKinds[static_cast<std::size_t>(kind) - 1]; }

Cause Cause::as_read_by(int own) const {
  Cause result = *this;
  if (rank == own && reporter != own) result.text = "the other ranks have given this one up: " + text;
  return result;
}

std::string encode(const Cause& cause, std::size_t most_bytes) {
  const std::string text = write_record(cause, kFields);
  return text.size() <= most_bytes ? text : cut(text, most_bytes - 1) + '\n';
}

std::optional<Cause> decode_cause(std::string_view bytes) {
  if (!bytes.starts_with("kind ")) return std::nullopt;
  return read_record<Cause>(bytes, kFields);
}

void throw_again(const Error& error, std::string_view text, std::int64_t step, int bucket) {
  std::shared_ptr<Cause> cause;
  if (error.cause() != nullptr) {
    cause = std::make_shared<Cause>(*error.cause());
    cause->text = text;
    if (cause->step < 0) cause->step = step;
    if (cause->bucket < 0) cause->bucket = bucket;
  }
  if (dynamic_cast<const Timeout*>(&error) != nullptr) throw Timeout(text, cause);
  if (dynamic_cast<const Mismatch*>(&error) != nullptr) throw Mismatch(text, cause);
  if (dynamic_cast<const PeerLost*>(&error) != nullptr) throw PeerLost(text, cause);
  throw;
}

void throw_error(const Cause& cause) {
  switch (cause.kind) {
    case Cause::Kind::timeout: throw make_error<Timeout>(cause);
    case Cause::Kind::mismatch: throw make_error<Mismatch>(cause);
    case Cause::Kind::lost:
    case Cause::Kind::silent:
    case Cause::Kind::left:
    case Cause::Kind::failed:
    case Cause::Kind::aborted:
    case Cause::Kind::stopped: break;
  }
  throw make_error<PeerLost>(cause);
}

}  // namespace lockstep
