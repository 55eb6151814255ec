// SPDX-License-Identifier: Apache-2.0
// In which order things happen on the device, and that the host waits for none of them. Ranks as threads, over the
// fakes: the CUDA runtime's sees every pair of uses of memory that nothing orders, in each run.
#include <gtest/gtest.h>

#include <algorithm>
#include <thread>

#include "runtime/comm/group_internals.h"
#include "tests/conformance/errors.h"
#include "tests/conformance/nccl_gpu.h"
#include "tests/support/rank_threads.h"
#include "tests/support/wait_until.h"

namespace lockstep::testing::nccl_order_test {
namespace {

using namespace std::chrono_literals;
using Group = std::shared_ptr<ProcessGroup>;

using NcclOrder = NcclTest;

// What a program does on its compute stream: writes gradients, and reads them.
void compute(StreamView stream, const BufferView& buffer, float value) {
  launch(stream, {buffer.data, buffer.bytes()}, [buffer, value] {
    std::fill_n(static_cast<float*>(fake_cuda::host_address(buffer.data)), buffer.count, value);
  });
}
void use(StreamView stream, const BufferView& buffer, float& first) {
  fake_cuda::enqueue(handle_of(stream), "optimizer",
                     [buffer, &first] { first = *static_cast<const float*>(fake_cuda::host_address(buffer.data)); },
                     {{buffer.data, buffer.bytes()}}, {});
}

// A stream of the program's that it captures into a graph, in CUDA's strictest mode.
struct Captured {
  explicit Captured(DeviceId device) : stream(device) {
    EXPECT_EQ(cudaStreamBeginCapture(handle_of(stream), cudaStreamCaptureModeGlobal), cudaSuccess);
  }
  // As CUDA says what has become of it.
  cudaError_t end() const {
    cudaGraph_t graph = nullptr;
    return cudaStreamEndCapture(handle_of(stream), &graph);
  }
  Stream stream;
};

// One small step with each kind of wait in it. What is waited for is not done before the waits are in their streams:
// else the host could see that it is, and no wait would be needed.
void step_once() {
  run_ranks(2, [](const Group& group) {
    Gpu gpu(*group);
    float result = 0;
    Gate first, second;
    gpu.compute(first.wait());
    group->all_reduce(gpu.first).wait_on(gpu.stream);
    use(gpu.stream, gpu.first, result);
    launch(gpu.stream, {gpu.second.data, gpu.second.bytes()}, second.wait());
    const Work work = group->rank() == 0 ? group->send(gpu.second, 1) : group->recv(gpu.second, 0);
    work.wait_on(gpu.stream);
    compute(gpu.stream, gpu.second, 2);
    first.open();
    second.open();
    gpu.stream.synchronize(copy_deadline());
  });
}

// Takes away one wait of a stream for an event after the other: each must be seen to be missing.
TEST_F(NcclOrder, EveryWaitOfAStreamIsNeeded) {
  const std::int64_t before = fake_cuda::calls("cudaStreamWaitEvent");
  step_once();
  const std::int64_t waits = fake_cuda::calls("cudaStreamWaitEvent") - before;
  EXPECT_EQ(of_cuda_.take(), std::vector<std::string>{});
  ASSERT_EQ(waits, 8) << "before and behind a collective and a message, on two ranks";
  for (std::int64_t k = 1; k <= waits; ++k) {
    fake_cuda::inject("cudaStreamWaitEvent=skip@" + std::to_string(k));
    step_once();
    fake_cuda::heal();
    const auto seen = of_cuda_.take();
    ASSERT_FALSE(seen.empty()) << "the suite does not notice that wait " << k << " is missing";
    expect_text(seen[0], {"in no order with"});
  }
}

TEST_F(NcclOrder, TheWeightTravelsInTheGroupOfItsBuffer) {
  run_ranks(2, [](const Group& group) {
    std::vector<float> x(10, 1);
    group->all_reduce(view(x), {.weight = 2}).wait();
  });
  EXPECT_EQ(calls("rank 0: all_reduce"), 2);
  EXPECT_EQ(calls("  all_reduce 1 int64 sum"), 2) << "of two ranks";
  EXPECT_EQ(calls("  all_reduce 10 float32 sum"), 2);
}

// On the communicator of the collectives, which is the only one.
TEST_F(NcclOrder, MessagesRunInTheProgramsOrder) {
  run_ranks(2, [](const Group& group) {
    const int other = 1 - group->rank();
    std::vector<float> x(10, static_cast<float>(group->rank()));
    std::vector<float> y(10);
    const std::vector<Work> works = {group->rank() == 0 ? group->send(view(x), 1) : group->recv(view(y), 0),
                                     group->barrier(),
                                     group->rank() == 0 ? group->recv(view(y), 1) : group->send(view(x), 0)};
    for (const Work& work : works) work.wait();
    EXPECT_EQ(y, std::vector<float>(10, static_cast<float>(other)));
    expect_text(error_of<InvalidArgument>([&] { return group->send(view(x), other, 1); }),
                {"send", "(nccl)", "the tag is 1"});
    expect_text(error_of<InvalidArgument>([&] { return group->recv(view(y), group->rank()); }),
                {"recv", "with itself"});
    group->barrier().wait();
  });
  std::vector<std::string> of_rank_0;
  for (const std::string& call : all_calls()) {
    for (const char* name : {"init", "send", "recv", "all_reduce"}) {
      if (call == std::string("rank 0: ") + name) of_rank_0.push_back(name);
    }
  }
  EXPECT_EQ(of_rank_0, (std::vector<std::string>{"init", "send", "all_reduce", "recv", "all_reduce"}));
}

// No stream can wait for what the host writes.
TEST_F(NcclOrder, AResultInHostMemoryIsThereBehindWaitOn) {
  run_ranks(2, [](const Group& group) {
    const Stream stream(group->device());
    std::vector<float> x(1000, 1);
    group->all_reduce(view(x)).wait_on(stream);
    EXPECT_EQ(x, std::vector<float>(1000, 2));
    std::vector<float> y(1000, static_cast<float>(group->rank()));
    (group->rank() == 0 ? group->send(view(y), 1) : group->recv(view(y), 0)).wait_on(stream);
    EXPECT_EQ(y, std::vector<float>(1000, 0));
  });
}

// The watchdog asks for what has ended at any time, and the program captures a graph when it likes.
TEST_F(NcclOrder, ACaptureOfTheProgramsIsNotDisturbed) {
  run_ranks(1, [](const Group& group) {
    Gpu gpu(*group);
    Gate gate;
    gpu.compute(gate.wait());
    const Work work = group->all_reduce(gpu.first);
    wait_until([&] { return work.end_mark() != nullptr; });
    Captured captured(group->device());
    const std::int64_t before = fake_cuda::calls("cudaEventQuery");
    EXPECT_TRUE(wait_until([&] { return fake_cuda::calls("cudaEventQuery") > before + 4; }));
    // Nor by the thread that captures.
    EXPECT_FALSE(work.done());
    const auto memory = device_runtime(DeviceKind::cuda).allocate(std::size_t{16} << 20, gpu.stream);
    const auto pinned = device_runtime(DeviceKind::cuda).allocate_pinned(4096, group->device());
    EXPECT_EQ(captured.end(), cudaSuccess);
    gate.open();
    work.wait();
  });
}

// An event of ours in a graph would pull the communication stream into it.
TEST_F(NcclOrder, NoCollectiveIsPartOfAGraph) {
  run_ranks(1, [](const Group& group) {
    Gpu gpu(*group);
    const Work before = group->all_reduce(gpu.first);
    wait_until([&] { return before.done(); });
    Captured captured(group->device());
    group->set_stream(captured.stream);
    std::vector<float> host(4, 1);
    const auto refused = [](const std::string& operation, const auto& call) {
      expect_text(error_of<InvalidArgument>(call),
                  {operation + " on cuda:0: the stream is being captured", "end the capture first"});
    };
    refused("all_reduce", [&] { return group->all_reduce(gpu.first); });
    refused("all_reduce", [&] { return group->all_reduce(view(host)); });
    refused("send", [&] { return group->send(gpu.first, 0); });
    refused("wait_on", [&] { before.wait_on(captured.stream); });
    Event event(group->device());
    refused("recording an event", [&] { event.record(captured.stream); });
    refused("waiting for an event", [&] { event.block(captured.stream); });
    EXPECT_EQ(captured.end(), cudaSuccess);
    // Nothing has been started, and nothing has failed.
    group->all_reduce(gpu.first).wait();
    EXPECT_EQ(group->internals().last_sequence(), 2);
  });
}

// CUDA refuses to wait for the whole device meanwhile, and breaks the capture for the question.
TEST_F(NcclOrder, AGroupEndsBehindACapture) {
  std::jthread program;
  run_ranks(1, [&](Group group) {
    Arena arena = group->allocate(4096);
    const auto captured = std::make_shared<Captured>(group->device());
    const std::int64_t before = fake_cuda::calls("cudaDeviceSynchronize");
    program = std::jthread([captured, before] {
      EXPECT_TRUE(wait_until([&] { return fake_cuda::calls("cudaDeviceSynchronize") > before + 2; }));
      EXPECT_EQ(captured->end(), cudaErrorStreamCaptureInvalidated);
    });
    arena = {};
    group.reset();
  });
  for (const char* const call : {"mem_free", "rank 0: destroy"}) EXPECT_EQ(calls(call), 1) << call;
}

// What streams wait for needs no host to wait for it, not even at the end.
TEST_F(NcclOrder, AGroupMayEndBehindItsStream) {
  std::vector<float> results(2);
  run_ranks(2, [&](Group group) {
    Gpu gpu(*group);
    compute(gpu.stream, gpu.first, 3);
    group->all_reduce(gpu.first).wait_on(gpu.stream);
    use(gpu.stream, gpu.first, results[static_cast<std::size_t>(group->rank())]);
    group.reset();
    gpu.stream.synchronize(copy_deadline());
  });
  EXPECT_EQ(results, (std::vector<float>{6, 6}));
}

}  // namespace
}  // namespace lockstep::testing::nccl_order_test
