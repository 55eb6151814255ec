// SPDX-License-Identifier: Apache-2.0
// Numbers in JSON, which lacks NaN and infinity: these are the texts "nan", "inf" and "-inf". Pure.
#pragma once

#include <fmt/format.h>

#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>

namespace lockstep::launcher {

inline nlohmann::ordered_json number_json(double value) {
  if (std::isfinite(value)) return value;
  return std::isnan(value) ? "nan" : fmt::format("{}", value);  // a NaN's sign means nothing
}

// Throws nlohmann's exceptions for a value of another type.
inline double number_in(const nlohmann::ordered_json& json) {
  return json.is_string() ? std::strtod(json.get<std::string>().c_str(), nullptr) : json.get<double>();
}

}  // namespace lockstep::launcher
