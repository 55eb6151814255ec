// SPDX-License-Identifier: Apache-2.0
// The doctor's findings, and how they are told. Pure.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace lockstep::launcher::doctor {

enum class Health {
  ok,       // as it should be, or merely worth knowing
  note,     // a rank can start, but somebody may wonder
  problem,  // a rank could not start, or not do what it is asked to
};

struct Finding {
  std::string section;  // "who am I", "limits"
  std::string name;     // "open files"
  std::string value;    // one line
  Health health = Health::ok;
  std::string remedy = {};  // for notes and problems: what to do
};

using Findings = std::vector<Finding>;

// A problem out of an error's message, which says what is wrong and then, behind "; ", what to do. `remedy` is for one
// that doesn't say.
Finding problem_of(std::string section, std::string name, const std::string& message, std::string remedy);

int count_problems(const Findings& findings);
// The last line of a report: without a problem, and behind the number of problems.
struct Conclusion {
  std::string good = "a rank could start here";
  std::string bad = "a rank could not start here, or not as asked";
};

// Sections with aligned names, and the conclusion.
std::string as_text(const Findings& findings, const Conclusion& conclusion = {});
// The same for programs: {"lockstep", "ok", "problems", "findings": [{section, name, value, health, remedy}], "probe"}.
// `probe` is what lockstep-probe answered, or null.
std::string as_json(const Findings& findings, const nlohmann::json& probe);

}  // namespace lockstep::launcher::doctor
