// SPDX-License-Identifier: Apache-2.0
// Steps with gradients of its own, on any backend, of which the last rank's are late:
//
//   e2e_delayed BACKEND data|forward|backward
//
// From step 20 on that part of its step takes it 20 ms longer: more than ten of its steps. Until it is asked to stop.
#include <chrono>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/comm/init/init_process_group.h"
#include "lockstep/comm/stop.h"
#include "lockstep/ddp/reducer.h"
#include "lockstep/device/device_runtime.h"
#include "lockstep/trace/span.h"

namespace lockstep::e2e {
namespace {

constexpr std::int64_t kFirstDelayed = 20;
constexpr std::chrono::milliseconds kDelay{20};

void run(const std::string& backend, const std::string& phase) {
  const auto group = init_process_group({.backend = backend});
  stop_on_signals(*group);
  const Stream stream(group->device());
  group->set_stream(stream);
  DeviceRuntime& device = device_runtime(group->device().kind);
  const std::vector<ParameterSpec> specs{
      {"a", DType::f32, {64, 64}}, {"b", DType::f32, {64, 64}}, {"c", DType::f32, {64, 64}}};
  Reducer reducer(specs, group, {{.cap_bytes = 0, .first_cap_bytes = 0}});
  const std::vector<int> order{2, 1, 0};
  reducer.plan_order(order);
  for (std::int64_t step = 0; !should_stop(*group); ++step) {
    const bool is_late = group->rank() == group->size() - 1 && step >= kFirstDelayed;
    // The fault: time that a slow disk or processor would take.
    const auto part = [&](const char* name) {
      if (is_late && phase == name) std::this_thread::sleep_for(kDelay);
    };
    {
      const trace::Span span(trace::SpanKind::data);
      part("data");
    }
    {
      const trace::Span span(trace::SpanKind::forward);
      part("forward");
    }
    reducer.begin_step({.weight = 1});
    part("backward");
    for (const int parameter : order) {
      device.zero(reducer.gradient<float>(parameter), specs[static_cast<std::size_t>(parameter)].bytes(), stream);
      reducer.mark_ready(parameter);
    }
    reducer.finish_step();
  }
}

}  // namespace
}  // namespace lockstep::e2e

int main(int count, char** arguments) {
  if (count != 3) {
    std::fprintf(stderr, "e2e_delayed BACKEND data|forward|backward\n");
    return 2;
  }
  lockstep::e2e::run(arguments[1], arguments[2]);
  return 0;
}
