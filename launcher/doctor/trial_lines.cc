// SPDX-License-Identifier: Apache-2.0
#include "launcher/doctor/trial_lines.h"

#include <nlohmann/json.hpp>

#include "runtime/base/printable.h"

namespace lockstep::launcher::doctor {
namespace {

using nlohmann::json;

std::string on_one_line(const json& value) { return value.dump(-1, ' ', false, json::error_handler_t::replace); }

// Returns nullopt for text that is not JSON, lacks a field or has a field of another type.
template <typename Read>
auto read_object(std::string_view text, Read read) -> std::optional<decltype(read(json()))> {
  const json value = json::parse(text, nullptr, false);
  if (!value.is_object()) return std::nullopt;
  try {
    return read(value);
  } catch (const json::exception&) {
    return std::nullopt;
  }
}

// Makes a text printable: another host wrote it.
std::string text_of_field(const json& value, const char* name) {
  return printable(value.at(name).get<std::string>(), 1000);
}

}  // namespace

std::string encode(const TrialHost& host) {
  return on_one_line({{"name", host.name},
                      {"build", host.build},
                      {"address", host.address},
                      {"why", host.why},
                      {"port", host.port},
                      {"token", host.token},
                      {"problems", host.problems}});
}

std::string encode(const TrialPeer& peer) {
  return on_one_line({{"node", peer.node}, {"address", peer.address}, {"token", peer.token}});
}

std::string encode(const TrialResult& result) {
  return on_one_line({{"node", result.node},
                      {"address", result.address},
                      {"outcome", static_cast<int>(result.outcome)},
                      {"from", result.from},
                      {"seconds", result.seconds},
                      {"problem", result.problem}});
}

std::optional<TrialHost> decode_trial_host(std::string_view text) {
  return read_object(text, [](const json& value) {
    TrialHost host{.name = text_of_field(value, "name"),
                   .build = text_of_field(value, "build"),
                   .address = text_of_field(value, "address"),
                   .why = text_of_field(value, "why"),
                   .port = value.at("port").get<int>(),
                   .token = value.at("token").get<std::string>()};
    for (const json& problem : value.at("problems")) {
      host.problems.push_back(printable(problem.get<std::string>(), 1000));
    }
    return host;
  });
}

std::optional<TrialPeer> decode_trial_peer(std::string_view text) {
  return read_object(text, [](const json& value) {
    return TrialPeer{.node = value.at("node").get<int>(),
                     .address = value.at("address").get<std::string>(),
                     .token = value.at("token").get<std::string>()};
  });
}

std::optional<TrialResult> decode_trial_result(std::string_view text) {
  const auto result = read_object(text, [](const json& value) {
    return TrialResult{.node = value.at("node").get<int>(),
                       .address = text_of_field(value, "address"),
                       .outcome = static_cast<TrialResult::Outcome>(value.at("outcome").get<int>()),
                       .from = text_of_field(value, "from"),
                       .seconds = value.at("seconds").get<double>(),
                       .problem = text_of_field(value, "problem")};
  });
  if (result && (result->outcome < TrialResult::Outcome::reached || result->outcome > TrialResult::Outcome::stranger)) {
    return std::nullopt;
  }
  return result;
}

}  // namespace lockstep::launcher::doctor
