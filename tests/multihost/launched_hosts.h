// SPDX-License-Identifier: Apache-2.0
// `lockstep run` on three hosts as one job. LOCKSTEP_PROGRAM comes from the build.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/store/secret.h"
#include "tests/support/leftovers.h"
#include "tests/support/network_namespaces.h"
#include "tests/support/process.h"

namespace lockstep::testing {

using Words = std::vector<std::string>;

inline constexpr int kHosts = 3;
inline const std::string kEndpoint = NetworkHosts::address(0) + ":29400";

class LaunchedHosts : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string reason = NetworkHosts::why_not();
    if (!reason.empty()) GTEST_SKIP() << reason;
    hosts_ = std::make_unique<NetworkHosts>(kHosts);
  }

  // `lockstep run` on one host: `ranks` of PROGRAM.
  Process launch(int host, int ranks, const Words& program, const Words& flags = {}, const Variables& extra = {}) {
    Words command = {LOCKSTEP_PROGRAM,  "run",    "--nnodes", nnodes_, "--nproc-per-node", std::to_string(ranks),
                     "--rdzv-endpoint", endpoint_};
    if (!lets_store_give_ranks_) command.insert(command.end(), {"--node-rank", std::to_string(host)});
    command.insert(command.end(), flags.begin(), flags.end());
    command.push_back("--");
    command.insert(command.end(), program.begin(), program.end());
    Variables environment = {{"LOCKSTEP_STORE_SECRET", secret_}};
    for (const auto& [name, value] : extra) environment[name] = value;
    return Process({.command = hosts_->command(host, command),
                    .environment = std::move(environment),
                    .name = "host " + std::to_string(host)});
  }
  // On all hosts, or on the first ones.
  std::vector<Process> launch_all(const Words& program, const Variables& extra = {}, const Words& flags = {},
                                  int hosts = kHosts, int ranks = 2) {
    return on_each(hosts, [&](int host) { return launch(host, ranks, program, flags, extra); });
  }
  template <typename Start>
  static std::vector<Process> on_each(int hosts, Start start) {
    std::vector<Process> launchers;
    for (int host = 0; host < hosts; ++host) launchers.push_back(start(host));
    return launchers;
  }
  // Waits for all of them, which end with `exit_code`.
  static std::vector<Result> ends_of(std::vector<Process>& launchers, int exit_code = 0) {
    std::vector<Result> results;
    for (Process& launcher : launchers) results.push_back(launcher.wait());
    for (const Result& result : results) EXPECT_EQ(result.exit_code, exit_code) << result.err;
    return results;
  }
  static void await_ranks(const std::vector<Process>& launchers, int ranks = 2) {
    for (const Process& launcher : launchers) ASSERT_TRUE(launcher.await_output("ready", ranks));
  }
  // `lockstep WORDS` on a host.
  Result lockstep_on(int host, Words words) const {
    words.insert(words.begin(), LOCKSTEP_PROGRAM);
    return run(hosts_->command(host, words));
  }
  // All that runs on a host: its launcher, and the processes that this has started.
  static std::vector<pid_t> processes_of(const Process& launcher) {
    std::vector<pid_t> pids;
    for (const auto& process : processes_with("LOCKSTEP_TEST_JOB", job())) {
      if (process.pid == launcher.pid() || process.parent == launcher.pid()) pids.push_back(process.pid);
    }
    return pids;
  }

  const std::string secret_ = store::Secret::random().hex();
  std::unique_ptr<NetworkHosts> hosts_;
  std::string nnodes_ = std::to_string(kHosts);
  std::string endpoint_ = kEndpoint;
  bool lets_store_give_ranks_ = false;
};

}  // namespace lockstep::testing
