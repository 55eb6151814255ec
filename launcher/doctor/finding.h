// SPDX-License-Identifier: Apache-2.0
// The findings of `lockstep doctor`, and their output as text and JSON. Pure.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace lockstep::launcher::doctor {

enum class Health {
  ok,       // no problem; the fact may be worth knowing
  note,     // a rank can start, but a user may be surprised
  problem,  // a rank could not start, or could not do its task
};

struct Finding {
  std::string section = {};  // "who am I", "limits"
  std::string name = {};     // "open files"
  std::string value = {};    // one line
  Health health = Health::ok;
  std::string remedy = {};  // the action that resolves a note or a problem

  static constexpr auto kFields = [](auto& finding, auto& fields) {
    fields("section", finding.section);
    fields("name", finding.name);
    fields("value", finding.value);
    fields("health", finding.health, Health::problem);
    fields("remedy", finding.remedy);
  };
};

using Findings = std::vector<Finding>;

// Makes a problem from an error's message, which has the reason and then, behind "; ", the remedy. `remedy` is used for
// a message that has none.
Finding problem_of(std::string section, std::string name, const std::string& message, std::string remedy);

int count_problems(const Findings& findings);
// The last line of a report: without a problem, and after the number of problems.
struct Conclusion {
  std::string good = "a rank could start here";
  std::string bad = "a rank could not start here, or not as asked";
};

// Returns sections with aligned names, and the conclusion.
std::string as_text(const Findings& findings, const Conclusion& conclusion = {});
// Returns the findings for programs: {"lockstep", "ok", "problems", "findings", "probe"}. `probe` is the answer of
// lockstep-probe, or null.
std::string as_json(const Findings& findings, const nlohmann::json& probe);

}  // namespace lockstep::launcher::doctor
