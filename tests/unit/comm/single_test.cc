// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/single.h"

#include <gtest/gtest.h>

#include <memory>
#include <span>
#include <vector>

#include "lockstep/base/error.h"
#include "runtime/comm/group_internals.h"
#include "runtime/store/hash_store.h"
#include "tests/support/error_of.h"

namespace lockstep::single_test {
namespace {

using lockstep::testing::error_of;
using lockstep::testing::expect_text;
using namespace std::chrono_literals;

std::shared_ptr<ProcessGroup> make_group(std::chrono::nanoseconds timeout = 10s) {
  GroupContext context;
  context.roster = {{0, 0, 4711, "here", "boot"}};
  context.store = std::make_shared<store::HashStore>();
  context.timeout = timeout;
  return single_backend().create(context, Deadline::after(10s));
}

BufferView view(std::vector<float>& values) { return BufferView(std::span(values)); }

// What ended the group is what every later call throws.
TEST(Single, ItsFirstFailureStays) {
  std::vector<float> two(2);
  std::vector<float> three(3);
  auto group = make_group();
  const Work sent = group->send(view(two), 0, 5);
  const std::string mismatch = error_of<Mismatch>([&] { return group->recv(view(three), 0, 5); });
  expect_text(mismatch, {"tag 5 wants 3 x float32, but 2 x float32"});
  EXPECT_EQ(error_of<Mismatch>([&] { sent.wait(); }), mismatch);
  EXPECT_EQ(error_of<Mismatch>([&] { return group->barrier(); }), mismatch);
  group->abort("later");
  EXPECT_EQ(error_of<Mismatch>([&] { group->progress(); }), mismatch);

  group = make_group(10ms);
  const Work received = group->recv(view(two), 0, 5);
  EXPECT_FALSE(received.done());
  const std::string timeout = error_of<Timeout>([&] { received.wait(); });
  EXPECT_EQ(error_of<Timeout>([&] { return group->all_reduce(view(two)); }), timeout);
  EXPECT_EQ(error_of<Timeout>([&] { group->allocate(64); }), timeout);

  group = make_group();
  group->abort("");
  group->abort("later");
  EXPECT_EQ(error_of<PeerLost>([&] { return group->barrier(); }), "aborted without a cause");
}

// What a device's backend overrides, on the CPU: its one stream is the host.
TEST(Single, TheStreamOfTheCpuIsTheHost) {
  const auto group = make_group();
  EXPECT_EQ(group->stream(), StreamView{});
  group->set_stream(group->stream());
  int elsewhere = 0;
  for (const StreamView wrong : {StreamView{{DeviceKind::cuda, 0}, nullptr}, StreamView{{}, &elsewhere}}) {
    expect_text(error_of([&] { group->set_stream(wrong); }),
                {"set_stream on rank 0 of 1 (single): the stream is of " + wrong.device.str()});
  }
  EXPECT_TRUE(group->internals().takes({}));
  EXPECT_FALSE(group->internals().takes({DeviceKind::cuda, 0}));
}

TEST(Single, WaitingOnAStreamWaitsOnTheHost) {
  const auto group = make_group();
  Work().wait_on(group->stream());
  std::vector<float> in(2);
  std::vector<float> out = {3, 4};
  const Work received = group->recv(view(in), 0, 5);
  const Work sent = group->send(view(out), 0, 5);
  received.wait_on(group->stream());
  EXPECT_EQ(in, out);
  sent.wait_on(group->stream());
  // What never comes is a timeout there too.
  const Work missing = group->recv(view(in), 0, 6);
  EXPECT_FALSE(missing.done());
  error_of<Timeout>([&] { missing.wait_on(group->stream()); });
}

TEST(Single, WhatIsOnlyReadMayBeConstAndBuffersOfOneCallAreInOnePlace) {
  const auto group = make_group();
  const std::vector<float> two{1, 2};
  std::vector<float> all(2);
  group->all_gather(std::span(two), std::span(all)).wait();
  EXPECT_EQ(all, two);
  std::vector<float> received(2);
  const Work sent = group->send(std::span(two), 0);
  group->recv(view(received), 0).wait();
  sent.wait();
  EXPECT_EQ(received, two);
  BufferView elsewhere = view(received);
  elsewhere.device = {DeviceKind::cuda, 0};
  error_of<InvalidArgument>([&] { return group->all_gather(view(all), elsewhere); });
}

}  // namespace
}  // namespace lockstep::single_test
