// SPDX-License-Identifier: Apache-2.0
#include "launcher/verdict/restart_policy.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "launcher/base/exit_codes.h"
#include "tests/support/messages.h"

namespace lockstep::launcher::restart_policy_test {
namespace {

using namespace std::chrono_literals;
using Kind = StartEnd::Kind;

StartEnd failed(std::int64_t steps, std::chrono::nanoseconds ran = 5s) {
  return {.kind = Kind::failed, .exit_code = 9, .ran = ran, .reports_steps = true, .steps_done = steps};
}
StartEnd failed_on(int agent, std::int64_t steps) {
  auto end = failed(steps);
  end.culprit = HostSlots{.name = agent == 7 ? "seven" : "other", .agent = agent};
  return end;
}
StartEnd without_steps(std::chrono::nanoseconds ran) { return {.kind = Kind::failed, .exit_code = 9, .ran = ran}; }
StartEnd of_kind(Kind kind, std::int64_t steps) {
  auto end = failed(steps);
  end.kind = kind;
  return end;
}
StartEnd over(int code) { return {.exit_code = code, .reports_steps = true, .steps_done = 57}; }
StartEnd without_another() {
  auto end = failed(57);
  end.why_no_start = "host b is lost";
  return end;
}

// "0 1000 out7 end9": the pause before the next start in ms, the host that it leaves out, or the exit code of a job
// that is over. `said` gets what people are told.
std::string decided(RestartPolicy policy, const std::vector<StartEnd>& ends, std::string& said) {
  std::string text;
  for (const StartEnd& end : ends) {
    const auto decision = policy.decide(end);
    said += decision.text + "\n";
    if (!text.empty()) text += " ";
    if (decision.left_out) text += fmt::format("out{} ", decision.left_out->agent);
    text += decision.pause ? std::to_string(decision.pause->count()) : fmt::format("end{}", decision.exit_code);
  }
  return text;
}

TEST(RestartPolicy, DecidesByTheStepsThatStartsHaveDone) {
  const StartEnd lost = of_kind(Kind::host_lost, 0), waits{.kind = Kind::awaits_host, .exit_code = 75};
  struct Case {
    const char* name;
    RestartPolicy policy;
    std::vector<StartEnd> ends;
    const char* decided;
  };
  const Case cases[] = {
      {"no restarts", {0, false}, {failed(57)}, "end9"},
      {"over", {3, false}, {over(0), over(75), over(143)}, "end0 end75 end143"},
      {"two that get further", {2, false}, {failed(10), failed(20), failed(30)}, "0 0 end9"},
      {"none can come", {5, false}, {without_another()}, "end9"},
      // Counts neither as a restart nor as a start without a step.
      {"a host is lacking", {1, true}, {waits, waits, waits, waits, failed(57)}, "0 0 0 0 0"},
      {"before the first step", {3, false}, {failed(0, 1h)}, "end9"},
      {"no steps, half a minute", {3, false}, {without_steps(30s)}, "0"},
      {"no steps, less", {3, false}, {without_steps(29900ms)}, "end9"},
      // The third resumed from an older snapshot.
      {"no new step", {100, false}, {failed(57), failed(57), failed(40), failed(57)}, "0 1000 2000 end77"},
      {"long without a step", {100, false}, {failed(57), without_steps(1h)}, "0 1000"},
      {"one new step", {100, false}, {failed(57), failed(57), failed(58), failed(58)}, "0 1000 0 1000"},
      {"a lost host", {1, false}, {lost, lost}, "1000 end9"},
      {"a failure after a loss", {9, false}, {lost, failed(0)}, "1000 end9"},
      // Where hosts may come and go, that uses up no restart.
      {"resized", {0, true}, {of_kind(Kind::resized, 1), of_kind(Kind::host_lost, 2), failed(3)}, "0 0 end9"},
      {"hosts go without a new step",
       {0, true},
       std::vector<StartEnd>(4, of_kind(Kind::host_lost, 7)),
       "0 1000 2000 end77"},
      {"a host is left out",
       {100, true},
       {failed(57), failed_on(7, 57), failed_on(7, 57), failed_on(7, 57), failed(57)},
       "0 1000 2000 out7 0 1000"},
      {"a failure that hosts share",
       {100, true},
       {failed(57), failed_on(7, 57), failed_on(8, 57), failed_on(7, 57)},
       "0 1000 2000 end77"},
      {"a new step parts them",
       {100, true},
       {failed(57), failed_on(7, 57), failed_on(7, 57), failed_on(7, 58), failed_on(7, 58), failed_on(7, 58),
        failed_on(7, 58)},
       "0 1000 2000 0 1000 2000 out7 0"},
      {"left out within the limit",
       {3, true},
       {failed(57), failed_on(7, 57), failed_on(7, 57), failed_on(7, 57)},
       "0 1000 2000 end9"},
  };
  std::string said;
  for (const Case& it : cases) {
    said += std::string("- ") + it.name + "\n";
    EXPECT_EQ(decided(it.policy, it.ends, said), it.decided) << it.name;
  }
  testing::expect_message("launcher", "what is said", said);
}

}  // namespace
}  // namespace lockstep::launcher::restart_policy_test
