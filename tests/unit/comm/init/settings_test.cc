// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/init/settings.h"

#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "tests/support/error_of.h"

namespace lockstep::settings_test {
namespace {

using lockstep::testing::error_of;
using lockstep::testing::expect_text;
using namespace std::chrono_literals;

Environment with(const char* name, const char* value) {
  Environment environment;
  environment.set(name, value);
  return environment;
}

template <typename E>
std::string refusal(const InitOptions& options, const Environment& environment = {}) {
  return error_of<E>([&] { resolve(options, environment); });
}

TEST(InitSettings, TimeoutFromArgumentThenEnvironmentThenDefault) {
  EXPECT_EQ(resolve({}, {}).timeout, 5min);
  EXPECT_EQ(resolve({}, with("LOCKSTEP_TIMEOUT", "90")).timeout, 90s);
  EXPECT_EQ(resolve({}, with("LOCKSTEP_TIMEOUT", "0.5")).timeout, 500ms);
  EXPECT_EQ(resolve({.timeout = 7s}, with("LOCKSTEP_TIMEOUT", "90")).timeout, 7s);
}

TEST(InitSettings, BadTimeoutsAreRefusedWithTheirValue) {
  for (const char* text : {"0", "-1", "x", "1s", "inf", "nan", "1e300", " 1"}) {
    expect_text(refusal<InvalidArgument>({}, with("LOCKSTEP_TIMEOUT", text)),
                {"LOCKSTEP_TIMEOUT='" + std::string(text) + "'"});
  }
  expect_text(refusal<InvalidArgument>({.timeout = 0s}), {"above 0"});
  expect_text(refusal<InvalidArgument>({.timeout = -1s}), {"-1 s"});
}

TEST(InitSettings, RankAndWorldSizeFromArgumentsOrUrl) {
  const InitSettings from_url = resolve({.init_method = "tcp://a:1?rank=1&world_size=2"}, {});
  EXPECT_EQ(from_url.overrides.rank, 1);
  EXPECT_EQ(from_url.overrides.world_size, 2);
  const InitSettings mixed = resolve({.init_method = "file:///x?world_size=2", .rank = 0}, {});
  EXPECT_EQ(mixed.overrides.rank, 0);
  EXPECT_EQ(mixed.overrides.world_size, 2);
  EXPECT_EQ(resolve({.init_method = "tcp://a:1?rank=1&world_size=2", .rank = 1}, {}).overrides.rank, 1);
  expect_text(refusal<InvalidArgument>({.init_method = "tcp://a:1?rank=1&world_size=2", .rank = 0}),
              {"rank=0 was passed", "init_method says 1"});
}

TEST(InitSettings, Devices) {
  EXPECT_EQ(resolve({.device = "cpu"}, {}).device, DeviceId{});
  EXPECT_EQ(resolve({}, {}).device, DeviceId{});
  const InitSettings given = resolve({.device = "cuda:1"}, {});
  EXPECT_EQ(given.device, (DeviceId{DeviceKind::cuda, 1}));
  EXPECT_FALSE(given.device_by_local_rank);
  const auto with = [](const std::string& value) { return Environment({{"LOCKSTEP_DEVICE", value}}); };
  const Environment wish = with("cuda");
  EXPECT_TRUE(resolve({}, wish).device_by_local_rank);
  EXPECT_EQ(resolve({}, wish).device.kind, DeviceKind::cuda);
  EXPECT_EQ(resolve({.device = "cpu"}, wish).device, DeviceId{});
  EXPECT_TRUE(resolve({.backend = "nccl"}, {}).device_by_local_rank);
  EXPECT_EQ(resolve({.backend = "nccl", .device = "cpu"}, {}).device, DeviceId{});
  for (const InitSettings& open : {resolve({.device = "auto"}, {}), resolve({}, with("auto"))}) {
    EXPECT_TRUE(open.device_is_auto);
    EXPECT_EQ(open.device, DeviceId{});
  }
  EXPECT_FALSE(resolve({.device = "cpu"}, with("auto")).device_is_auto);
  EXPECT_TRUE(resolve({.backend = "nccl", .device = "auto"}, {}).device_by_local_rank);
  EXPECT_THROW(resolve({}, with("gpu")), InvalidArgument);
  EXPECT_THROW(resolve({.device = "tpu"}, {}), InvalidArgument);
}

TEST(InitSettings, Liveness) {
  const auto with = [](const std::string& value) { return Environment({{"LOCKSTEP_LIVENESS", value}}); };
  EXPECT_TRUE(resolve({}, {}).detect_silence);
  EXPECT_TRUE(resolve({}, with("on")).detect_silence);
  EXPECT_FALSE(resolve({}, with("off")).detect_silence);
  EXPECT_EQ(resolve({}, with("on")).silence, std::chrono::seconds(2));
  EXPECT_EQ(resolve({}, with("7.5")).silence, std::chrono::milliseconds(7500));
  for (const auto* value : {"OFF", "0", "1.9", "-5", "5s", "false", "maybe", " off"}) {
    EXPECT_THROW(resolve({}, with(value)), InvalidArgument) << value;
  }
}

TEST(InitSettings, HangTimeout) {
  const auto with = [](const std::string& value) { return Environment({{"LOCKSTEP_HANG_TIMEOUT", value}}); };
  EXPECT_EQ(resolve({}, {}).hang_timeout.count(), 0);
  EXPECT_EQ(resolve({}, with("off")).hang_timeout.count(), 0);
  EXPECT_EQ(resolve({}, with("2")).hang_timeout.count(), 2000);
  EXPECT_EQ(resolve({}, with("90.5")).hang_timeout.count(), 90500);
  for (const auto* value : {"0", "1.9", "-5", "on", "5s"}) {
    EXPECT_THROW(resolve({}, with(value)), InvalidArgument) << value;
  }
}

TEST(InitSettings, RelayOfMembership) {
  const auto with = [](const std::string& value) { return Environment({{"LOCKSTEP_MEMBERSHIP", value}}); };
  EXPECT_FALSE(resolve({}, {}).relay);
  EXPECT_FALSE(resolve({}, with("")).relay);
  EXPECT_EQ(resolve({}, with("127.0.0.1:7000")).relay, (net::HostPort{"127.0.0.1", 7000}));
  EXPECT_THROW(resolve({}, with("here")), InvalidArgument);
}

TEST(StartLine, SaysWhoHowWhereAndWithWhat) {
  rendezvous::Identity identity;
  EXPECT_EQ((identity.source = "alone", start_line(identity, "in-process", "single", 2)),
            "rank 0/1 (local 0/1) alone, store in-process, backend single, 2 threads");
  identity.rank = identity.local_rank = 2;
  identity.world_size = identity.local_world_size = 4;
  identity.source = "Open MPI";
  EXPECT_EQ(start_line(identity, "127.0.0.1:41233", "shm", 1),
            "rank 2/4 (local 2/4) from Open MPI, store 127.0.0.1:41233, backend shm, 1 thread");
  identity.ignored = "RANK and WORLD_SIZE (RANK=2)";
  expect_text(start_line(identity, "s", "shm", 1), {"1 thread; not used: RANK and WORLD_SIZE (RANK=2)"});
}

}  // namespace
}  // namespace lockstep::settings_test
