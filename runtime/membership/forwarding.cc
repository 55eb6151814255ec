// SPDX-License-Identifier: Apache-2.0
#include "runtime/membership/forwarding.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "lockstep/base/environment.h"
#include "proto/push.h"
#include "proto/request.h"

namespace lockstep::membership {
namespace {

constexpr int kChannelBits = 32;
constexpr std::uint64_t kForwarded = std::uint64_t{1} << 63;

std::optional<store::Frame> read_frame(std::string_view bytes) {
  proto::PushReader reader(proto::PushFormat::frame);
  if (reader.read(bytes) != proto::Status::ok || reader.size() != bytes.size()) return std::nullopt;
  const auto& values = reader.contents().values;
  return store::Frame{.status = static_cast<std::uint8_t>(reader.contents().number),
                      .list = {values.begin(), values.end()}};
}

}  // namespace

std::uint64_t forwarded_id(store::SessionId carrier, std::uint64_t channel) {
  return kForwarded | (carrier << kChannelBits) | channel;
}

store::SessionId carrier_of(std::uint64_t id) {
  return (id & kForwarded) == 0 ? 0 : (id & ~kForwarded) >> kChannelBits;
}

std::uint64_t channel_of(std::uint64_t id) { return id & kMostChannels; }

std::string write_requests(std::span<const ForwardedRequest> requests) {
  std::vector<std::string> channels;
  for (const auto& request : requests) channels.push_back(std::to_string(request.channel));
  proto::Contents contents;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    contents.keys.emplace_back(channels[i]);
    contents.values.emplace_back(requests[i].bytes);
  }
  std::string bytes;
  proto::write_request(bytes, {proto::Op::forward, contents});
  return bytes;
}

std::optional<std::uint64_t> parse_channel(std::string_view text) {
  const auto number = parse_int(text);
  if (!number || *number < 1 || static_cast<std::uint64_t>(*number) > kMostChannels) return std::nullopt;
  return static_cast<std::uint64_t>(*number);
}

void append(std::vector<std::string>& list, const ForwardedFrame& frame) {
  list.push_back(fmt::format("{}", fmt::join(frame.channels, " ")));
  proto::write_push(
      list.emplace_back(), proto::PushFormat::frame,
      {{}, {frame.frame.list.begin(), frame.frame.list.end()}, static_cast<std::int64_t>(frame.frame.status)});
}

std::optional<std::vector<ForwardedFrame>> read_frames(std::span<const std::string_view> list) {
  std::vector<ForwardedFrame> frames;
  if (list.size() % 2 != 0) return std::nullopt;
  for (std::size_t i = 0; i < list.size(); i += 2) {
    auto frame = read_frame(list[i + 1]);
    if (!frame) return std::nullopt;
    ForwardedFrame forwarded{.frame = std::move(*frame)};
    for (std::string_view rest = list[i]; !rest.empty();) {
      const std::string_view word = rest.substr(0, rest.find(' '));
      const auto channel = parse_channel(word);
      if (!channel) return std::nullopt;
      forwarded.channels.push_back(*channel);
      rest.remove_prefix(std::min(rest.size(), word.size() + 1));
    }
    frames.push_back(std::move(forwarded));
  }
  return frames;
}

}  // namespace lockstep::membership
