// SPDX-License-Identifier: Apache-2.0
// Who comes to a port of a group that connects and does not prove himself is turned away, and sends nobody data.
#include <dirent.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <climits>
#include <fstream>
#include <functional>
#include <mutex>
#include <set>
#include <sstream>
#include <string>
#include <thread>

#include "lockstep/base/error.h"
#include "runtime/base/logging.h"
#include "runtime/comm/wire/frame.h"
#include "runtime/store/hash_store.h"
#include "runtime/store/prefix_store.h"
#include "tests/conformance/errors.h"
#include "tests/support/groups.h"
#include "tests/support/tcp_stranger.h"

namespace lockstep::testing {
namespace {

// Tells the test what the ranks say before any rank can read it.
class AnnouncingStore final : public store::PrefixStore {
 public:
  using Hook = std::function<void(std::string_view key, std::string_view value)>;
  AnnouncingStore(std::shared_ptr<store::Store> store, Hook hook)
      : PrefixStore("", std::move(store)), hook_(std::move(hook)) {}
  void set(std::string_view key, std::string_view value) override {
    hook_(key, value);
    PrefixStore::set(key, value);
  }

 private:
  const Hook hook_;
};

// Ports at which this process listens on any other address than 127.0.0.1.
std::set<std::string> open_ports() {
  std::set<std::string> own;
  DIR* const folder = ::opendir("/proc/self/fd");
  while (const dirent* const entry = ::readdir(folder)) {
    std::array<char, PATH_MAX> target{};
    const std::string path = std::string("/proc/self/fd/") + entry->d_name;
    if (::readlink(path.c_str(), target.data(), target.size() - 1) > 0) own.insert(target.data());
  }
  ::closedir(folder);
  std::set<std::string> ports;
  std::ifstream table("/proc/self/net/tcp");
  std::string line;
  while (std::getline(table, line)) {
    std::istringstream words(line);
    std::string slot, local, remote, state, queues, timer, retries, user, timeout, inode;
    words >> slot >> local >> remote >> state >> queues >> timer >> retries >> user >> timeout >> inode;
    constexpr std::string_view kListen = "0A";
    if (state == kListen && own.contains("socket:[" + inode + "]") && !local.starts_with("0100007F:"))
      ports.insert(local);
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
      EXPECT_EQ(TcpStranger().connect(place), ECONNREFUSED) << "later nobody listens";
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
}  // namespace lockstep::testing
