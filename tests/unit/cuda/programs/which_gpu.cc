// SPDX-License-Identifier: Apache-2.0
// A rank that says which GPU it got. First word: "init" joins a group on device "cuda"; "choose VALUE" sets
// CUDA_VISIBLE_DEVICES itself before that; "cpu" joins one on the CPU; "index N" asks for cuda:N;
// "auto" for that, and "auto L" hides the GPUs from local rank L. Prints "local L on cuda:I UUID, contexts on N", N as
// the host counts, or for "cpu" whether CUDA was touched.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

#include "lockstep/comm/init/init_process_group.h"
#include "lockstep/device/device_runtime.h"
#include "tests/fakes/cudart/fake_cuda.h"

namespace {

// What programs do, on threads that have never called CUDA.
void use(lockstep::ProcessGroup& group) {
  const lockstep::Event event(group.device());
  std::thread([&] {
    const lockstep::Stream stream(group.device());
    const auto memory = lockstep::device_runtime(group.device().kind).allocate(64, stream);
    group.all_reduce(lockstep::BufferView(memory.get(), 0, lockstep::DType::f32, group.device())).wait();
    stream.synchronize(lockstep::Deadline::after(std::chrono::seconds(60)));
  }).join();
  std::thread([&] { event.reached(); }).join();
}

}  // namespace

int main(int count, char** arguments) {
  const std::string action = count > 1 ? arguments[1] : "";
  const std::string value = count > 2 ? arguments[2] : "";
  if (action == "choose") ::setenv("CUDA_VISIBLE_DEVICES", value.c_str(), 1);
  const char* const local = std::getenv("LOCAL_RANK");
  if (action == "auto" && local != nullptr && value == local) ::setenv("CUDA_VISIBLE_DEVICES", "", 1);
  lockstep::InitOptions options;
  options.device = "cuda";
  if (action == "cpu" || action == "auto") options.device = action;
  if (action == "index") options.device = "cuda:" + value;
  if (lockstep::fake_cuda::touched()) {
    fmt::print("CUDA was touched before init_process_group\n");
    return 1;
  }
  const auto group = lockstep::init_process_group(options);
  if (action == "cpu") {
    fmt::print("CUDA was {}touched\n", lockstep::fake_cuda::touched() ? "" : "not ");
    return 0;
  }
  group->barrier().wait();
  if (group->device().kind == lockstep::DeviceKind::cpu) {
    fmt::print("local {} on cpu, contexts on {}\n", local == nullptr ? "-" : local,
               fmt::join(lockstep::fake_cuda::devices_with_context(), " "));
    return 0;
  }
  use(*group);
  fmt::print("local {} on {} {}, contexts on {}\n", local == nullptr ? "-" : local, group->device().str(),
             lockstep::device_runtime(group->device().kind).info(group->device()).uuid,
             fmt::join(lockstep::fake_cuda::devices_with_context(), " "));
  std::fflush(stdout);
  return 0;
}
