// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/init/settings.h"

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "runtime/base/parse_timeout.h"
#include "runtime/base/printable.h"
#include "runtime/membership/member_link.h"
#include "runtime/membership/membership_table.h"
#include "runtime/net/port_range.h"

namespace lockstep {
namespace {

std::optional<int> merge(std::optional<int> argument, std::optional<int> from_url, std::string_view name) {
  if (argument && from_url && *argument != *from_url) {
    throw InvalidArgument(
        fmt::format("init_process_group: {}={} was passed, but init_method says {}; pass only one of the two", name,
                    *argument, *from_url));
  }
  return argument ? argument : from_url;
}

// A GPU is for who asks for it, or for the backend that knows nothing else.
std::string device_asked_for(const InitOptions& options, const Environment& environment) {
  std::string asked = options.device.empty() ? environment.get("LOCKSTEP_DEVICE").value_or("") : options.device;
  if (asked.empty()) asked = options.backend == "nccl" ? "auto" : "cpu";
  return asked == "auto" && options.backend == "nccl" ? "cuda" : asked;
}

DeviceId parse_device(const std::string& text, std::string_view from) {
  try {
    return DeviceId::parse(text);
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(fmt::format("{}: {}", from, error.what()));
  }
}

std::chrono::milliseconds hang_timeout(const Environment& environment) {
  const std::string text = environment.get("LOCKSTEP_HANG_TIMEOUT").value_or("off");
  if (text == "off") return {};
  const auto timeout =
      std::chrono::ceil<std::chrono::milliseconds>(parse_timeout(text, "environment: LOCKSTEP_HANG_TIMEOUT"));
  if (timeout >= membership::kLeastHang) return timeout;
  throw InvalidArgument(
      fmt::format("environment: LOCKSTEP_HANG_TIMEOUT='{}' is too short, since ranks report their progress only every "
                  "0.5 s; give {} seconds or more, or off",
                  printable(text), std::chrono::duration<double>(membership::kLeastHang).count()));
}

net::HostPort relay_at(const std::string& text) {
  try {
    return net::parse_host_port(text);
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(
        fmt::format("environment: LOCKSTEP_MEMBERSHIP is not an address: {}; only `lockstep run` sets this variable, "
                    "for its ranks; unset it if you start the ranks in another way",
                    error.what()));
  }
}

}  // namespace

InitSettings resolve(const InitOptions& options, const Environment& environment) {
  InitSettings settings;
  if (options.timeout) {
    if (options.timeout->count() <= 0) {
      throw InvalidArgument(
          fmt::format("init_process_group: timeout of {} s was passed; the timeout must be above 0: pass, for example, "
                      "std::chrono::seconds(60)",
                      std::chrono::duration<double>(*options.timeout).count()));
    }
    settings.timeout = *options.timeout;
  } else if (const auto text = environment.get("LOCKSTEP_TIMEOUT")) {
    settings.timeout = parse_timeout(*text, "environment: LOCKSTEP_TIMEOUT");
  }
  settings.method = rendezvous::parse_init_method(options.init_method);
  settings.overrides.rank = merge(options.rank, settings.method.rank, "rank");
  settings.overrides.world_size = merge(options.world_size, settings.method.world_size, "world_size");
  const std::string device = device_asked_for(options, environment);
  settings.device_is_auto = device == "auto";
  // Though the program asks for a device by itself: else a misspelt one would be taken for an order.
  if (const auto text = environment.get("LOCKSTEP_DEVICE").value_or("auto"); !text.empty() && text != "auto") {
    parse_device(text, "environment: LOCKSTEP_DEVICE");
  }
  if (!settings.device_is_auto) {
    settings.device =
        parse_device(device, options.device.empty() ? "environment: LOCKSTEP_DEVICE" : "init_process_group");
  }
  settings.device_text = device;
  settings.device_by_local_rank = device == "cuda";
  const auto silence = membership::silence_limit(environment);
  settings.detect_silence = silence.has_value();
  settings.silence = silence.value_or(settings.silence);
  settings.hang_timeout = hang_timeout(environment);
  if (const auto text = environment.get("LOCKSTEP_MEMBERSHIP"); text && !text->empty()) {
    settings.relay = relay_at(*text);
  }
  net::port_range(environment);  // a bad value is found now, and not when somebody listens
  return settings;
}

std::string start_line(const rendezvous::Identity& identity, const std::string& store, std::string_view backend,
                       int threads) {
  const std::string source = identity.source == "alone" ? identity.source : "from " + identity.source;
  const std::string ignored = identity.ignored.empty() ? "" : "; not used: " + identity.ignored;
  return fmt::format("rank {}/{} (local {}/{}) {}, store {}, backend {}, {} thread{}{}", identity.rank,
                     identity.world_size, identity.local_rank, identity.local_world_size, source, store, backend,
                     threads, threads == 1 ? "" : "s", ignored);
}

}  // namespace lockstep
