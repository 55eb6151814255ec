// SPDX-License-Identifier: Apache-2.0
#include "runtime/rendezvous/meeting/file_meeting.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <barrier>
#include <filesystem>
#include <fstream>
#include <memory>
#include <thread>
#include <vector>

#include "lockstep/base/error.h"
#include "tests/support/child.h"
#include "tests/support/error_of.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/warnings.h"

namespace lockstep::rendezvous::file_meeting_test {
namespace {

using lockstep::testing::Child;
using lockstep::testing::error_of;
using lockstep::testing::expect_text;
using lockstep::testing::Line;
using namespace std::chrono_literals;

Deadline soon() { return Deadline::after(20s); }

class FileMeetingTest : public ::testing::Test {
 protected:
  void write(const std::string& text) const { std::ofstream(path_) << text; }
  std::size_t files() const {
    return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator(folder_), {}));
  }

  // A note of this process, and of one that has ended.
  static MeetingNote note_of_us(int port = 4711, const std::string& run = "run") {
    return note_of_this_process({"127.0.0.1", static_cast<std::uint16_t>(port)}, run);
  }
  static MeetingNote note_of_the_dead() {
    MeetingNote note = note_of_us(1);
    Child child([](const Line&) { return 0; });
    child.wait();
    note.pid = child.pid();
    return note;
  }

  template <typename E>
  std::string refusal_of_rank_zero() const {
    return error_of<E>([&] { FileMeeting(path_, note_of_us(1)); });
  }
  template <typename E>
  std::string refusal_of_others(std::chrono::nanoseconds limit = 20s, const std::string& run = "run") const {
    return error_of<E>([&] { await_note(path_, run, {}, Deadline::after(limit)); });
  }

  const lockstep::testing::TemporaryFolder folder_;
  const std::filesystem::path path_ = folder_ / "job";
};

TEST_F(FileMeetingTest, ReadersThatComeBeforeAndAfterGetTheNote) {
  int early = 0;
  std::thread reader([&] { early = await_note(path_, "run", {}, soon()).address.port; });
  const FileMeeting meeting(path_, note_of_us());
  reader.join();
  EXPECT_EQ(early, 4711);
  EXPECT_EQ(await_note(path_, "run", {}, soon()).pid, ::getpid());
}

TEST_F(FileMeetingTest, OnlyItsUserMayReadItAndNothingIsLeftBehind) {
  {
    const FileMeeting meeting(path_, note_of_us());
    struct stat status = {};
    ASSERT_EQ(::stat(path_.c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0777, 0600u);
    EXPECT_EQ(files(), 1u) << "the file it was written to first is left";
  }
  EXPECT_EQ(files(), 0u);
}

TEST_F(FileMeetingTest, ANoteCarriesTheSecretAndWithoutOneItIsNone) {
  const MeetingNote note = note_of_us();
  ASSERT_TRUE(note.secret);
  EXPECT_TRUE(*decode_note(encode(note), path_).secret == *note.secret);
  EXPECT_FALSE(*note_of_us().secret == *note.secret);
  std::string short_one = encode(note);
  short_one.erase(short_one.find("secret ") + 7, 1);
  EXPECT_EQ(error_of<CorruptData>([&] { decode_note(short_one, path_); }).find(note.secret->hex().substr(1, 8)),
            std::string::npos);
}

TEST_F(FileMeetingTest, AFileOfAnotherUsersIsNotBelieved) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give a file away";
  write(encode(note_of_us()));
  // Root's files are believed by all, so this one must be somebody else's.
  ASSERT_EQ(::chown(path_.c_str(), 65534, 65534), 0);
  expect_text(error_of<InvalidArgument>([&] { read_note(path_); }), {"belongs to user id 65534", "runs as 0"});
  expect_text(refusal_of_rank_zero<InvalidArgument>(), {"belongs to user id 65534"});
}

TEST_F(FileMeetingTest, AStaleFileIsReplacedByRankZeroAndNeverReadByTheOthers) {
  write(encode(note_of_the_dead()));
  expect_text(refusal_of_others<Timeout>(20ms), {"left behind by an earlier run", "of 0.02 s"});
  int read = 0;
  std::thread reader([&] { read = await_note(path_, "run", {}, soon()).address.port; });
  const FileMeeting meeting(path_, note_of_us());
  reader.join();
  EXPECT_EQ(read, 4711);
}

TEST_F(FileMeetingTest, WhoWasSlowerToRemoveAStaleFileLeavesTheLiveOne) {
  const MeetingNote stale = note_of_the_dead();
  write(encode(stale));
  // Another rank 0 has found it too, and is faster.
  const MeetingNote live = note_of_us();
  const FileMeeting meeting(path_, live);
  remove_stale_note(path_, stale);
  ASSERT_TRUE(read_note(path_));
  EXPECT_EQ(read_note(path_)->token, live.token);
}

TEST_F(FileMeetingTest, OfManyThatFindAStaleFileOneTakesItsPlaceAndKeepsIt) {
  const std::string stale = encode(note_of_the_dead());
  for (int round = 0; round < 50; ++round) {
    write(stale);
    constexpr int kRivals = 8;
    std::vector<std::unique_ptr<FileMeeting>> meetings(kRivals);
    std::vector<MeetingNote> notes(kRivals);
    std::barrier start(kRivals);
    std::vector<std::thread> rivals;
    for (std::size_t i = 0; i < kRivals; ++i) {
      rivals.emplace_back([&, i] {
        notes[i] = note_of_us();
        start.arrive_and_wait();
        try {
          meetings[i] = std::make_unique<FileMeeting>(path_, notes[i]);
        } catch (const Mismatch&) {  // who comes second
        }
      });
    }
    for (std::thread& rival : rivals) rival.join();
    ASSERT_EQ(std::count(meetings.begin(), meetings.end(), nullptr), kRivals - 1) << "in round " << round;
    const auto winner = std::find_if(meetings.begin(), meetings.end(), [](const auto& it) { return it != nullptr; });
    ASSERT_EQ(read_note(path_)->token, notes[static_cast<std::size_t>(winner - meetings.begin())].token);
  }
}

TEST_F(FileMeetingTest, AFileThatCantBeRemovedAtTheEndIsWarnedOf) {
  const lockstep::testing::Warnings warnings;
  {
    const FileMeeting meeting(path_, note_of_us());
    std::filesystem::remove(path_);
    std::filesystem::create_directory(path_);
  }
  EXPECT_EQ(warnings.count("; remove it by hand"), 1);
}

// The kernel itself says of such a folder that it is one of FUSE, to all but the user who serves it.
TEST(IsOnNetwork, OfFuseAndNotOfMemory) {
  constexpr int kNoFuse = 77;
  const lockstep::testing::TemporaryFolder folder;
  Child child([&](const Line&) {
    const auto is_taken_for_shared = [&](const char* type, const std::string& options) {
      if (::mount("none", folder.c_str(), type, 0, options.c_str()) != 0) ::_exit(kNoFuse);
      return is_on_network(folder / "job");
    };
    const UniqueFd server(::open("/dev/fuse", O_RDWR | O_CLOEXEC));
    const std::string options = "rootmode=40000,user_id=65534,group_id=65534,fd=" + std::to_string(server.get());
    if (!server || ::unshare(CLONE_NEWNS) != 0 || ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) {
      return kNoFuse;
    }
    const bool is_memory_shared = is_taken_for_shared("tmpfs", "");
    return is_taken_for_shared("fuse", options) && !is_memory_shared ? 0 : 1;
  });
  const int status = child.wait();
  if (WIFEXITED(status) && WEXITSTATUS(status) == kNoFuse) GTEST_SKIP() << "this process may not mount FUSE";
  EXPECT_EQ(status, 0);
}

// Hosts made from one image may share a name: such a note may be a live job's.
TEST_F(FileMeetingTest, OfAnotherBootNothingIsKnownWhateverTheHostIsCalled) {
  MeetingNote note = note_of_this_process({"10.0.0.1", 1}, "run");
  note.boot_id = "another";
  EXPECT_EQ(state_of_writer(note), WriterState::unknown);
  write(encode(note));
  EXPECT_EQ(await_note(path_, "run", {}, soon()).token, note.token);
  expect_text(refusal_of_rank_zero<Mismatch>(),
              {"can't tell", "host " + note.host, "after a reboot of its host, remove the file"});
  EXPECT_EQ(read_note(path_)->token, note.token) << "the live job's file is left alone";
}

TEST_F(FileMeetingTest, APidTellsSomethingInItsContainerAndUntilItIsGivenAgain) {
  MeetingNote note = note_of_us();
  EXPECT_EQ(state_of_writer(note), WriterState::alive);
  note.start -= 1;
  EXPECT_EQ(state_of_writer(note), WriterState::gone);
  note.pid_namespace = "1";
  EXPECT_EQ(state_of_writer(note), WriterState::unknown);
}

TEST_F(FileMeetingTest, ASecondRankZeroNamesBoth) {
  const FileMeeting meeting(path_, note_of_us());
  const std::string self = "pid " + std::to_string(::getpid());
  expect_text(refusal_of_rank_zero<Mismatch>(), {"in use by " + self, "this process is " + self, "its own rank"});
}

TEST_F(FileMeetingTest, AFileOfTheUsersOwnIsLeftAlone) {
  write("important");
  expect_text(refusal_of_rank_zero<CorruptData>(), {"did not write"});
  expect_text(refusal_of_others<CorruptData>(), {"9 bytes"});
  std::string text;
  std::getline(std::ifstream(path_), text);
  EXPECT_EQ(text, "important");
  write(std::string(100000, 'x'));
  EXPECT_THROW(read_note(path_), CorruptData);
}

TEST_F(FileMeetingTest, ANoteOfAnotherRunOrThatProvedWrongIsNotTaken) {
  const MeetingNote note = note_of_us(4711, "first");
  const FileMeeting meeting(path_, note);
  expect_text(refusal_of_others<Timeout>(20ms, "second"), {"'first'"});
  expect_text(error_of<Timeout>([&] {
                await_note(path_, "first", {note.token, "leads to no store"}, Deadline::after(20ms));
              }),
              {"leads to no store"});
}

TEST_F(FileMeetingTest, WhatCantBeWrittenOrReadIsSaid) {
  const std::string missing = (folder_ / "no" / "job").string();
  expect_text(error_of<InvalidArgument>([&] { FileMeeting(missing, note_of_us(1)); }),
              {missing, "No such file", "folder"});
  expect_text(error_of<InvalidArgument>([&] { await_note(folder_, "run", {}, soon()); }), {"Is a directory"});
  expect_text(refusal_of_others<Timeout>(20ms), {"there is no such file"});
}

}  // namespace
}  // namespace lockstep::rendezvous::file_meeting_test
