// SPDX-License-Identifier: Apache-2.0
// Who comes to a port of a group that connects and does not prove himself is turned away, and sends nobody data.
#include <gtest/gtest.h>

#include <cerrno>
#include <functional>
#include <mutex>
#include <set>
#include <string>
#include <thread>

#include "lockstep/base/error.h"
#include "runtime/base/logging.h"
#include "runtime/comm/wire/frame.h"
#include "runtime/store/hash_store.h"
#include "tests/conformance/errors.h"
#include "tests/support/announcing_store.h"
#include "tests/support/groups.h"
#include "tests/support/own_sockets.h"
#include "tests/support/tcp_stranger.h"

namespace lockstep::testing::strangers_test {
namespace {

// Ports at which this process listens on any other address than 127.0.0.1.
std::set<std::string> open_ports() {
  std::set<std::string> ports;
  for (const OwnSocket& socket : own_sockets()) {
    if (socket.listens() && !socket.local.starts_with("0100007F:")) ports.insert(socket.local);
  }
  return ports;
}

// What rank 1 would send once it has proved itself: a frame with an announcement.
std::string frame_of_rank_1() {
  const wire::FrameBytes frame = wire::write_frame({.number = 1});
  std::string bytes = {1, 0, 0, 0, static_cast<char>(wire::used_bytes(frame)), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
  return bytes.append(reinterpret_cast<const char*>(frame.data()), wire::used_bytes(frame));
}

TEST(Strangers, WhoComesFirstWithTheWiresOwnBytesIsTurnedAway) {
  std::mutex mutex;
  std::string log;
  set_log_sink([&](LogLevel, std::string_view line) {
    const std::lock_guard<std::mutex> lock(mutex);
    log.append(line).push_back('\n');
  });
  std::string place;
  TcpStranger stranger;
  const auto store = std::make_shared<AnnouncingStore>(std::make_shared<store::HashStore>(),
                                                       [&](std::string_view key, std::string_view value) {
                                                         if (key != "pair/tcp/0") return;
                                                         place = value.substr(value.find(' ') + 1);
                                                         EXPECT_EQ(stranger.connect(place), 0);
                                                         stranger.send(frame_of_rank_1());
                                                       });
  const auto before = open_ports();
  const auto body = [&](int rank) {
    const auto group = make_group("pair", "tcp", {0, 1}, rank, store);
    std::vector<float> x(100000, static_cast<float>(rank + 1));
    group->all_reduce(view(x)).wait();
    EXPECT_EQ(x, std::vector<float>(100000, 3.0f));
    group->barrier().wait();
    if (rank == 0) {
      EXPECT_EQ(TcpStranger().connect(place), ECONNREFUSED) << "nobody listens once all are connected";
      EXPECT_EQ(open_ports(), before);
    }
    group->barrier().wait();
  };
  std::thread other(body, 1);
  body(0);
  other.join();
  set_log_sink({});
  expect_text(log, {"TCP: rank 0 (host ", "turned away 127.0.0.1:", "it sent another greeting"});
}

}  // namespace
}  // namespace lockstep::testing::strangers_test
