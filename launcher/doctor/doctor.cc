// SPDX-License-Identifier: Apache-2.0
#include "launcher/doctor/doctor.h"

#include <fmt/chrono.h>

#include <ctime>
#include <nlohmann/json.hpp>

#include "launcher/base/exit_codes.h"
#include "launcher/base/system.h"
#include "launcher/doctor/examine_hosts.h"
#include "launcher/doctor/finding.h"
#include "launcher/doctor/gpu_findings.h"
#include "launcher/doctor/gpu_trial.h"
#include "launcher/doctor/host_findings.h"
#include "launcher/doctor/probe_findings.h"
#include "launcher/doctor/rendezvous_findings.h"
#include "launcher/doctor/variable_findings.h"
#include "launcher/placement/rank_count.h"
#include "launcher/placement/seen_gpus.h"
#include "lockstep/base/environment.h"
#include "runtime/base/printable.h"

namespace lockstep::launcher {
namespace {

using namespace doctor;

void append(Findings& all, Findings more) {
  all.insert(all.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
}

// Prints the findings and returns the exit code.
int tell(const DoctorOptions& options, const Findings& findings, const nlohmann::json& probe,
         const Conclusion& conclusion = {}) {
  write_to_stdout(options.json ? as_json(findings, probe) : printable_lines(as_text(findings, conclusion)));
  return count_problems(findings) == 0 ? 0 : 1;
}

// Examines the hosts first, where there are some: a job on them says less of what is wrong with one.
int examine_gpus(const DoctorOptions& options, const Environment& environment) {
  const Conclusion conclusion{.good = "these GPUs train together",
                              .bad = "these GPUs don't train together, or not as they should"};
  Findings findings = {{"report", "lockstep",
                        fmt::format("{}, {:%Y-%m-%d %H:%M} UTC", LOCKSTEP_VERSION, fmt::gmtime(std::time(nullptr)))}};
  if (options.run.starts_launchers()) {
    append(findings, examine_hosts(options, environment));
  } else {
    findings.push_back(gpu_findings({}, "/proc/driver/nvidia/version", nullptr).back());
    const SeenGpus seen = ask_gpus();
    if (!seen.reason.empty()) {
      findings.push_back(problem_of("GPUs", "none", seen.reason, "run it where there are GPUs"));
    } else if (seen.gpus.size() == 1) {
      findings.push_back({"GPUs", "one", "a single GPU exchanges nothing: " + seen.gpus[0].name, Health::problem,
                          "run it where there are two or more, or see CUDA_VISIBLE_DEVICES"});
    }
  }
  if (count_problems(findings) > 0) return tell(options, findings, nullptr, conclusion);
  const auto trial = try_gpus(options);
  append(findings, gpu_trial_findings(trial));
  return tell(options, findings, trial, conclusion);
}

int examine(const DoctorOptions& options) {
  const auto environment = Environment::of_process();
  if (options.gpus) return examine_gpus(options, environment);
  if (options.run.starts_launchers()) {
    return tell(
        options, examine_hosts(options, environment), nullptr,
        {.good = "a job could start on these hosts", .bad = "a job on these hosts could not start, or not as asked"});
  }
  Findings findings = rendezvous_findings(environment);
  append(findings, variable_findings(environment));
  append(findings, host_findings());
  auto probe = ask_probe(probe_path(), options.probe_timeout);
  append(findings, std::move(probe.findings));
  append(findings, gpu_findings(find_gpus("/proc/driver/nvidia/gpus", "/dev", environment),
                                "/proc/driver/nvidia/version", probe.json));
  return tell(options, findings, probe.json);
}

}  // namespace

int doctor_command(const DoctorOptions& options) {
  return exit_code_of("doctor", kExitInternal, [&] { return examine(options); });
}

}  // namespace lockstep::launcher
