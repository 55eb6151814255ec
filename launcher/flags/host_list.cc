// SPDX-License-Identifier: Apache-2.0
#include "launcher/flags/host_list.h"

#include <fmt/format.h>

#include <algorithm>

#include "launcher/flags/flag_values.h"
#include "launcher/flags/run_options.h"
#include "lockstep/base/error.h"
#include "runtime/base/printable.h"
#include "runtime/base/text.h"

namespace lockstep::launcher {
namespace {

int slots_of(std::string_view text, const std::string& where) {
  const auto slots = parse_count(text, kMaxRanks);
  if (!slots) {
    throw InvalidArgument(fmt::format("{}: '{}' is not a number of slots; give a number from 1 to {}", where,
                                      printable(text), kMaxRanks));
  }
  return static_cast<int>(*slots);
}

void check_name(std::string_view name, const std::string& where) {
  // A remote shell would parse such a name as one of its own flags.
  const bool is_flag = name.starts_with('-');
  const bool is_odd = std::any_of(name.begin(), name.end(), [](unsigned char c) { return c <= ' ' || c == 0x7f; });
  if (name.empty() || is_flag || is_odd) {
    throw InvalidArgument(fmt::format(
        "{}: '{}' is not a name of a host; give a name or an address without spaces that does not begin with '-'",
        where, printable(name)));
  }
}

void add(std::vector<HostEntry>& hosts, std::string_view name, std::optional<int> slots, const std::string& where) {
  check_name(name, where);
  const auto known = std::find_if(hosts.begin(), hosts.end(), [&](const auto& host) { return host.name == name; });
  if (known == hosts.end()) {
    hosts.push_back({std::string(name), slots});
  } else if (!slots || !known->slots) {
    throw InvalidArgument(
        fmt::format("{}: host {} is named twice; name the host once, with its slots, as in {}:2", where, name, name));
  } else {
    *known->slots += *slots;
  }
}

// Adds an item "host:4", "[::1]:4" or "host". A text with more than one colon is a bare IPv6 address.
void add_item(std::vector<HostEntry>& hosts, std::string_view item, std::optional<int> slots,
              const std::string& where) {
  const auto bracket = item.rfind(']');
  const auto colon = item.rfind(':');
  if (colon != item.npos && (bracket == item.npos ? item.find(':') == colon : colon > bracket)) {
    slots = slots_of(item.substr(colon + 1), where);
    item = item.substr(0, colon);
  }
  if (item.starts_with('[') && item.ends_with(']')) item = item.substr(1, item.size() - 2);
  add(hosts, item, slots, where);
}

std::vector<std::string_view> words_of(std::string_view line) {
  std::vector<std::string_view> words;
  line = line.substr(0, line.find('#'));
  while (true) {
    const auto begin = line.find_first_not_of(" \t\r");
    if (begin == line.npos) return words;
    const auto end = std::min(line.find_first_of(" \t\r", begin), line.size());
    words.push_back(line.substr(begin, end - begin));
    line.remove_prefix(end);
  }
}

}  // namespace

std::vector<HostEntry> parse_hosts(std::string_view text) {
  std::vector<HostEntry> hosts;
  const std::string where = fmt::format("-H {}", printable(text));
  for (const std::string_view item : split(text, ',')) add_item(hosts, item, {}, where);
  return hosts;
}

std::vector<HostEntry> parse_hostfile(std::string_view text, std::string_view path) {
  std::vector<HostEntry> hosts;
  int number = 0;
  if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);  // a byte order mark, as Windows editors write it
  for (const std::string_view line : split(text, '\n')) {
    const std::string where = fmt::format("--hostfile {}, line {}", path, ++number);
    const auto words = words_of(line);
    if (words.empty()) continue;
    std::optional<int> slots;
    for (std::size_t i = 1; i < words.size(); ++i) {
      const auto equals = words[i].find('=');
      const auto name = words[i].substr(0, equals);
      if (equals == words[i].npos || (name != "slots" && name != "max_slots" && name != "max-slots")) {
        throw InvalidArgument(
            fmt::format("{}: '{}' is not a known setting of a host; give each host a line 'HOST slots=N'", where,
                        printable(words[i])));
      }
      const int value = slots_of(words[i].substr(equals + 1), where);
      if (name == "slots") slots = value;
    }
    add_item(hosts, words.front(), slots, where);
  }
  if (hosts.empty())
    throw InvalidArgument(
        fmt::format("--hostfile {}: the file names no host; give each host a line 'HOST slots=N'", path));
  return hosts;
}

std::vector<HostEntry> first_slots(const std::vector<HostEntry>& hosts, int ranks) {
  std::vector<HostEntry> chosen;
  int left = ranks;
  for (const HostEntry& host : hosts) {
    if (!host.slots) {
      throw InvalidArgument(fmt::format("-n {} needs the slots of each host, and host {} has none; give {}:SLOTS",
                                        ranks, host.name, host.name));
    }
    if (left == 0) break;
    chosen.push_back({host.name, std::min(left, *host.slots)});
    left -= *chosen.back().slots;
  }
  if (left > 0) {
    throw InvalidArgument(fmt::format("-n {}: the hosts have only {} slots together; give more slots, as in {}:{}",
                                      ranks, ranks - left, hosts.front().name, *hosts.front().slots + left));
  }
  return chosen;
}

}  // namespace lockstep::launcher
