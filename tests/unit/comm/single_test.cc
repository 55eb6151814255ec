#include "runtime/comm/single.h"

#include <gtest/gtest.h>

#include <memory>
#include <span>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/store/hash_store.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;

std::shared_ptr<ProcessGroup> make_group() {
  GroupContext context;
  context.roster = {{0, 0, 4711, "here", "boot"}};
  context.store = std::make_shared<store::HashStore>();
  context.timeout = 10s;
  return single_backend().create(context, Deadline::after(10s));
}

BufferView view(std::vector<float>& values) { return BufferView(std::span(values)); }

// The text of the Expected that `call` throws.
template <typename Expected, typename Call>
std::string error_of(Call call) {
  try {
    call();
  } catch (const Expected& error) {
    return error.what();
  }
  ADD_FAILURE() << "no error at all";
  return {};
}

TEST(Single, AMismatchStaysAMismatch) {
  const auto group = make_group();
  std::vector<float> two(2);
  std::vector<float> three(3);
  const Work sent = group->send(view(two), 0, 5);
  const std::string text = error_of<Mismatch>([&] { group->recv(view(three), 0, 5); });
  EXPECT_NE(text.find("tag 5 wants 3 x float32, but 2 x float32"), std::string::npos) << text;
  EXPECT_EQ(error_of<Mismatch>([&] { sent.wait(); }), text);
  EXPECT_EQ(error_of<Mismatch>([&] { group->barrier(); }), text);
  group->abort("later");
  EXPECT_EQ(error_of<Mismatch>([&] { group->progress(); }), text);
}

TEST(Single, ATimeoutStaysATimeout) {
  const auto group = make_group();
  std::vector<float> two(2);
  const Work received = group->recv(view(two), 0, 5);
  EXPECT_FALSE(received.done());
  const std::string text = error_of<Timeout>([&] { received.wait(); });
  EXPECT_EQ(error_of<Timeout>([&] { group->all_reduce(view(two)); }), text);
  EXPECT_EQ(error_of<Timeout>([&] { group->allocate(64); }), text);
}

TEST(Single, AnAbortStaysAPeerLost) {
  const auto group = make_group();
  group->abort("");
  group->abort("later");
  EXPECT_EQ(error_of<PeerLost>([&] { group->barrier(); }), "aborted without a cause");
}

}  // namespace
}  // namespace lockstep
