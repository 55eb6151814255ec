// SPDX-License-Identifier: Apache-2.0
// What a rank is told by arguments and variables, and which GPU it takes.
#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "runtime/comm/init/rank_device.h"
#include "runtime/comm/init/settings.h"
#include "tests/support/error_of.h"
#include "tests/support/messages.h"

namespace lockstep::settings_test {
namespace {

using lockstep::testing::error_of;
using lockstep::testing::expect_message;
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
  enum class Choice { given, by_local_rank, open };
  struct Case {
    InitOptions options;
    const char* variable;
    Choice choice;
    DeviceId wanted = {};
  };
  const Case cases[] = {{{.device = "cpu"}, "", Choice::given},
                        {{}, "", Choice::given},
                        {{.device = "cuda:1"}, "", Choice::given, {DeviceKind::cuda, 1}},
                        {{}, "cuda", Choice::by_local_rank, {DeviceKind::cuda, 0}},
                        {{.device = "cpu"}, "cuda", Choice::given},
                        {{.backend = "nccl"}, "", Choice::by_local_rank, {DeviceKind::cuda, 0}},
                        {{.backend = "nccl", .device = "cpu"}, "", Choice::given},
                        {{.backend = "nccl", .device = "auto"}, "", Choice::by_local_rank, {DeviceKind::cuda, 0}},
                        {{.device = "auto"}, "", Choice::open},
                        {{}, "auto", Choice::open},
                        {{.device = "cpu"}, "auto", Choice::given}};
  for (const Case& one : cases) {
    SCOPED_TRACE(one.options.backend + ", " + one.options.device + ", " + one.variable);
    const InitSettings settings = resolve(one.options, with("LOCKSTEP_DEVICE", one.variable));
    EXPECT_EQ(settings.device, one.wanted);
    EXPECT_EQ(settings.device_by_local_rank, one.choice == Choice::by_local_rank);
    EXPECT_EQ(settings.device_is_auto, one.choice == Choice::open);
  }
  EXPECT_THROW(resolve({.device = "tpu"}, {}), InvalidArgument);
}

void expect_refused(const char* variable, std::initializer_list<const char*> values) {
  for (const char* value : values) {
    EXPECT_THROW(resolve({}, with(variable, value)), InvalidArgument) << variable << "=" << value;
  }
}

TEST(InitSettings, LivenessHangTimeoutAndRelayOfVariables) {
  const auto of = [](const char* variable, const char* value) { return resolve({}, with(variable, value)); };
  EXPECT_TRUE(resolve({}, {}).detect_silence);
  EXPECT_TRUE(of("LOCKSTEP_LIVENESS", "on").detect_silence);
  EXPECT_FALSE(of("LOCKSTEP_LIVENESS", "off").detect_silence);
  EXPECT_EQ(of("LOCKSTEP_LIVENESS", "on").silence, 2s);
  EXPECT_EQ(of("LOCKSTEP_LIVENESS", "7.5").silence, 7500ms);
  expect_refused("LOCKSTEP_LIVENESS", {"OFF", "0", "1.9", "-5", "5s", "false", "maybe", " off"});
  EXPECT_EQ(resolve({}, {}).hang_timeout, 0s);
  EXPECT_EQ(of("LOCKSTEP_HANG_TIMEOUT", "off").hang_timeout, 0s);
  EXPECT_EQ(of("LOCKSTEP_HANG_TIMEOUT", "2").hang_timeout, 2s);
  EXPECT_EQ(of("LOCKSTEP_HANG_TIMEOUT", "90.5").hang_timeout, 90500ms);
  expect_refused("LOCKSTEP_HANG_TIMEOUT", {"0", "1.9", "-5", "on", "5s"});
  EXPECT_FALSE(resolve({}, {}).relay);
  EXPECT_EQ(of("LOCKSTEP_MEMBERSHIP", "127.0.0.1:7000").relay, (net::HostPort{"127.0.0.1", 7000}));
  expect_refused("LOCKSTEP_MEMBERSHIP", {"here"});
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

InitSettings asking_for(const std::string& device) { return resolve({.device = device}, {}); }

rendezvous::Identity local(int rank, int size) {
  rendezvous::Identity identity;
  identity.local_rank = rank;
  identity.local_world_size = size;
  return identity;
}

VisibleGpus gpus(int count) {
  return {count, [](int index) { return "GPU-" + std::to_string(index); }};
}

int index_of(const std::string& device, int rank, int size, int count, bool share = false) {
  const DeviceId id = rank_device(asking_for(device), local(rank, size), gpus(count), share);
  EXPECT_EQ(id.kind, DeviceKind::cuda);
  return id.index;
}

TEST(RankDevice, IsTheOneOfTheLocalRankOrTheOneThatWasGiven) {
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(index_of("cuda", rank, 4, 4), rank);
    // As under srun --gpus-per-task=1. Whether they are different ones, comm/nccl finds out.
    EXPECT_EQ(index_of("cuda", rank, 4, 1), 0) << "a process that sees a single one takes it";
  }
  EXPECT_EQ(index_of("cuda", 1, 2, 8), 1);
  EXPECT_EQ(index_of("cuda:3", 0, 1, 4), 3);
  EXPECT_EQ(index_of("cuda:0", 2, 4, 4), 0);
  EXPECT_EQ(rank_device(asking_for("cpu"), local(3, 4), gpus(0), false), DeviceId{});
}

TEST(RankDevice, MoreRanksThanGpusAreRefusedUnlessTheyWereToldToShare) {
  const auto refusal = [](int rank, int size) {
    return error_of<BackendUnavailable>([&] { index_of("cuda", rank, size, 2); });
  };
  expect_message("comm", "3 ranks, 2 GPUs", refusal(0, 3));
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(refusal(rank, 3), refusal(0, 3)) << "on every rank";
    EXPECT_EQ(index_of("cuda", rank, 3, 2, true), rank % 2);
  }
  // As from a launcher that does not say how many there are.
  expect_message("comm", "a local rank past the GPUs", refusal(2, 1));
}

TEST(RankDevice, AWrongDeviceIsRefusedWithWhereItIsFrom) {
  Environment environment;
  environment.set("LOCKSTEP_DEVICE", "gpu");
  for (const char* const asked : {"", "cpu", "auto"}) {
    expect_text(error_of([&] { resolve({.device = asked}, environment); }), {"environment: LOCKSTEP_DEVICE", "'gpu'"});
  }
}

}  // namespace
}  // namespace lockstep::settings_test
