// SPDX-License-Identifier: Apache-2.0
// docs/deploy/compose: its services as they are, each on a host of its own.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "runtime/rendezvous/identity/identity.h"
#include "runtime/rendezvous/meeting/meet.h"
#include "tests/deploy/deploy_files.h"
#include "tests/support/network_namespaces.h"

namespace lockstep::testing::compose_test {
namespace {

using nlohmann::json;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int kServices = 2;

std::string service_name(int index) { return "host" + std::to_string(index); }

const json& service(const json& file, int index) { return file.at("services").at(service_name(index)); }

Variables variables_of(const json& service) {
  Variables variables;
  for (const auto& [name, value] : service.at("environment").items()) variables[name] = value;
  return variables;
}

std::vector<std::string> command_of(const json& service) {
  std::vector<std::string> command;
  for (const char* part : {"entrypoint", "command"}) {
    for (const std::string word : service.at(part)) command.push_back(word);
  }
  return command;
}

TEST(DeployCompose, EachServiceIsARank) {
  const json file = read_manifest("compose/compose.yaml");
  ASSERT_EQ(file.at("services").size(), static_cast<std::size_t>(kServices));
  for (int index = 0; index < kServices; ++index) {
    Variables variables = variables_of(service(file, index));
    EXPECT_EQ(variables.at("LOCKSTEP_STORE_SECRET_FILE"),
              "/run/secrets/" + service(file, index).at("secrets").front().get<std::string>());
    variables.erase("LOCKSTEP_STORE_SECRET_FILE");
    const auto identity = rendezvous::identify(to_environment(variables));
    EXPECT_EQ(identity.rank, index);
    EXPECT_EQ(identity.world_size, kServices);
    EXPECT_EQ(identity.source, "RANK and WORLD_SIZE");
    EXPECT_EQ(rendezvous::plan_meeting(identity, {}).address.to_string(), service_name(0) + ":29400");
    EXPECT_THAT(read_source("Dockerfile"), HasSubstr("--with " + command_of(service(file, index)).front() + " "));
  }
  EXPECT_EQ(file.at("secrets").size(), 1U);
}

#ifdef PROGRAMS
// The engine's part of it: names that resolve, a secret at /run/secrets. In each host's own mount namespace. Containers
// of one machine have one kernel, and its boot id.
void set_up(const NetworkHosts& hosts, int host, const TemporaryFolder& folder) {
  const auto names = folder.write(
      "hosts", "127.0.0.1 localhost\n" + NetworkHosts::address(0) + " host0\n" + NetworkHosts::address(1) + " host1\n",
      0644);
  const auto file = folder.write("secret", std::string(64, 'a') + "\n", 0600);
  const Result result = run(hosts.command(host, {"sh", "-ec",
                                                 "umount /proc/sys/kernel/random/boot_id; mount --bind \"$1\" "
                                                 "/etc/hosts; mount -t tmpfs tmpfs /run; mkdir /run/secrets; "
                                                 "cp -p \"$2\" /run/secrets/store",
                                                 "sh", names, file}));
  ASSERT_EQ(result.exit_code, 0) << result.err;
}

Process start(const NetworkHosts& hosts, const json& file, int index) {
  Variables environment = variables_of(service(file, index));
  const char* path = std::getenv("PATH");
  environment["OMP_NUM_THREADS"] = "1";  // each takes the machine for its own
  environment["PATH"] = std::string(PROGRAMS) + ":" + (path == nullptr ? "/usr/bin:/bin" : path);
  return Process({.command = hosts.command(index, command_of(service(file, index))),
                  .environment = environment,
                  .name = service_name(index)});
}

TEST(DeployCompose, ItsServicesTrainTogetherOnTwoHosts) {
  if (const std::string reason = NetworkHosts::why_not(); !reason.empty()) GTEST_SKIP() << reason;
  const json file = read_manifest("compose/compose.yaml");
  const NetworkHosts hosts(kServices);
  const TemporaryFolder folder;
  for (int index = 0; index < kServices; ++index) set_up(hosts, index, folder);
  std::vector<Process> services;
  for (int index = 0; index < kServices; ++index) services.push_back(start(hosts, file, index));
  for (int index = 0; index < kServices; ++index) {
    const Result result = services[static_cast<std::size_t>(index)].wait();
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_THAT(result.err, ContainsRegex("rank " + std::to_string(index) + "/2 .*backend tcp"));
    EXPECT_THAT(result.err, Not(HasSubstr("no secret: anyone"))) << "the secret was used";
    EXPECT_EQ(result.out.find("validation loss") != std::string::npos, index == 0) << result.out;
  }
}
#endif

}  // namespace
}  // namespace lockstep::testing::compose_test
