// SPDX-License-Identifier: Apache-2.0
// What the launcher and the report say of a job of which one rank has been late since some step, by more than ten
// steps' time in each.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace lockstep::testing {

struct DelayedRank {
  int rank = 1;
  std::string host = {};   // empty: any
  std::string phase = {};  // data, forward, backward
  int first_step = 20;
  double ms = 20;
};

// What the launcher says of it while the job runs, but for who it is.
inline std::string line_about(const DelayedRank& late) { return " % of every step: " + late.phase + "\n"; }

// `lockstep report` of the job's --log-dir: who is named, and that it is in these steps that the time is lost.
inline void expect_in_report(const std::string& jsonl, const DelayedRank& late) {
  std::map<int, std::vector<double>> delayed;  // by rank: ms of the phase
  bool has_start = false;
  std::ifstream in(jsonl);
  for (std::string line; std::getline(in, line);) {
    const auto json = nlohmann::json::parse(line);
    if (json["type"] == "start") {
      has_start = true;
      ASSERT_FALSE(json["straggler"].is_null());
      EXPECT_EQ(json["straggler"]["rank"], late.rank) << json;
      EXPECT_EQ(json["straggler"]["cause"], late.phase) << json;
      if (!late.host.empty()) {
        EXPECT_EQ(json["straggler"]["host"], late.host) << json;
      }
    }
    if (json["type"] == "step" && json["step"] >= late.first_step) {
      delayed[json["rank"]].push_back(json["phases_ms"][late.phase]);
    }
  }
  EXPECT_TRUE(has_start);
  ASSERT_GE(delayed.size(), 2u);
  for (auto& [rank, values] : delayed) {
    std::sort(values.begin(), values.end());
    if (rank == late.rank) {
      EXPECT_GE(values[values.size() / 2], 0.9 * late.ms) << "in most of these steps";
    } else {
      EXPECT_LT(values[values.size() / 2], late.ms) << "rank " << rank;
    }
  }
}

}  // namespace lockstep::testing
