// SPDX-License-Identifier: Apache-2.0
// The tests of device_test.cc on a GPU: each process that `lockstep run` starts is a rank of all of them.
#include "lockstep/base/environment.h"
#include "lockstep/comm/init/init_process_group.h"
#include "tests/libtorch/device/device.h"

namespace lockstep::testing {

void on_devices(int ranks, const RankBody& body) {
  if (Environment::of_process().get_int("WORLD_SIZE").value_or(1) != ranks) return;
  at::set_num_threads(1);
  Group group = init_process_group({.backend = "nccl"});
  const c10::DeviceGuard here(libtorch::device_of(*group));
  body(std::move(group));
}

#if LOCKSTEP_HAS_CUDA_GRAPHS
TEST(Device, ACollectiveWithinACaptureIsRefusedAndToldToTheOtherRanks) {
  expect_collectives_are_refused<libtorch::CudaGraph>();
}
#endif

}  // namespace lockstep::testing
