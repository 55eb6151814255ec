#include "runtime/store/file_store.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <thread>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/store/barrier.h"
#include "tests/unit/store/temporary_folder.h"

namespace lockstep::store {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;

Deadline soon() { return Deadline::after(seconds(30)); }

template <typename E>
std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const E& error) {
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return {};
}

class FileStoreTest : public testing::Test {
 protected:
  TemporaryFolder folder_;
  const std::string path_ = folder_.file("store");
};

TEST_F(FileStoreTest, CreateReplacesWhatIsThereAndIsPrivate) {
  const auto old = FileStore::create(path_, "old");
  old->set("k", "old");
  const auto created = FileStore::create(path_, "new");
  EXPECT_EQ(created->num_keys(), 0);
  EXPECT_EQ(created->origin().run_id, "new");
  EXPECT_EQ(created->origin().pid, ::getpid());
  EXPECT_FALSE(created->origin().maker_has_ended());
  struct stat info {};
  ASSERT_EQ(::stat(path_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  EXPECT_EQ(folder_.count(), 1u);
  // Who still has the old one must not go on as if nothing had happened.
  EXPECT_THAT(message_of<StoreError>([&] { old->set("k", "v"); }), HasSubstr("removed or replaced"));
  EXPECT_THAT(message_of<StoreError>([&] { old->get("absent", soon()); }), HasSubstr(path_));
}

TEST_F(FileStoreTest, OpenWaitsForTheFile) {
  std::thread maker([&] { FileStore::create(path_, "run")->set("k", "v"); });
  EXPECT_EQ(FileStore::open(path_, "run", soon())->get("k", soon()), "v");
  maker.join();
  EXPECT_THAT(message_of<Timeout>([&] { FileStore::open(path_ + "2", "run", Deadline::after(milliseconds(20))); }),
              HasSubstr(path_ + "2: there is no such file"));
}

TEST_F(FileStoreTest, AStaleFileIsRecognisedAndItsMakerNamed) {
  // The maker is a process that has ended.
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    FileStore::create(path_, "run-of-yesterday");
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_EQ(status, 0);
  for (const std::string& message :
       {message_of<Mismatch>([&] { FileStore::open(path_, "run-of-today", Deadline::after(milliseconds(20))); }),
        message_of<Mismatch>([&] { FileStore::open_or_create(path_, "run-of-today"); })}) {
    EXPECT_THAT(message, HasSubstr("run-of-yesterday"));
    EXPECT_THAT(message, HasSubstr("run-of-today"));
    EXPECT_THAT(message, HasSubstr("pid " + std::to_string(child)));
    EXPECT_THAT(message, HasSubstr("(ended)"));
  }
  EXPECT_TRUE(FileStore::open(path_, "", soon())->origin().maker_has_ended());
  // Rank 0 replaces it while another rank waits.
  std::thread rank0([&] { FileStore::create(path_, "run-of-today")->set("k", "v"); });
  EXPECT_EQ(FileStore::open(path_, "run-of-today", soon())->get("k", soon()), "v");
  rank0.join();
}

TEST_F(FileStoreTest, OpenOrCreateMakesOneFileForAll) {
  constexpr int kRanks = 8;
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < kRanks; ++rank) {
    ranks.emplace_back([&, rank] {
      const auto store = FileStore::open_or_create(path_, "run");
      barrier(*store, "b", rank, kRanks, soon());
    });
  }
  for (std::thread& rank : ranks) rank.join();
  EXPECT_EQ(folder_.count(), 1u);
}

TEST_F(FileStoreTest, AnEmptyFileOfTheUserIsFilled) {
  std::ofstream(path_).close();
  EXPECT_THROW(FileStore::open(path_, "run", Deadline::after(milliseconds(10))), Timeout);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 4; ++rank) {
    ranks.emplace_back([&] { FileStore::open_or_create(path_, "run")->add("n", 1); });
  }
  for (std::thread& rank : ranks) rank.join();
  EXPECT_EQ(FileStore::open(path_, "run", soon())->add("n", 0), 4);
}

TEST_F(FileStoreTest, SomethingElseIsLeftAlone) {
  std::ofstream(path_) << "my thesis";
  EXPECT_THAT(message_of<CorruptData>([&] { FileStore::open_or_create(path_, "run"); }), HasSubstr("left alone"));
  EXPECT_THROW(FileStore::open(path_, "run", soon()), CorruptData);
  EXPECT_EQ(std::filesystem::file_size(path_), 9u);
  EXPECT_THROW(FileStore::open_or_create(folder_.file("."), "run"), Error);
  EXPECT_THAT(message_of<SystemError>([&] { FileStore::create(folder_.file("no/such/folder"), "run"); }),
              HasSubstr("does its folder exist"));
}

TEST_F(FileStoreTest, EveryCutOfTheLastRecordIsForgottenAndRepaired) {
  std::size_t before = 0;
  {
    const auto store = FileStore::create(path_, "run");
    store->set("kept", "v");
    before = std::filesystem::file_size(path_);
    store->set("lost", "value");
  }
  std::string whole(std::filesystem::file_size(path_), '\0');
  std::ifstream(path_, std::ios::binary).read(whole.data(), static_cast<std::streamsize>(whole.size()));
  for (std::size_t size = before; size < whole.size(); ++size) {  // What kill -9 leaves of a write.
    std::ofstream(path_, std::ios::binary | std::ios::trunc) << whole.substr(0, size);
    const auto store = FileStore::open(path_, "run", soon());
    EXPECT_EQ(store->num_keys(), 1) << size;
    store->set("next", "n");
    const auto other = FileStore::open(path_, "run", soon());
    EXPECT_EQ(other->get("next", soon()), "n") << size;
    EXPECT_EQ(other->num_keys(), 2) << size;
  }
}

TEST_F(FileStoreTest, AChangedByteIsCorruptData) {
  std::size_t header = 0;
  {
    const auto store = FileStore::create(path_, "run");
    header = std::filesystem::file_size(path_);
    store->set("key", "value");
    store->set("next", "x");
  }
  const auto store = FileStore::open(path_, "run", soon());
  std::fstream file(path_, std::ios::binary | std::ios::in | std::ios::out);
  file.seekp(static_cast<std::streamoff>(header + 10));  // in the key
  file << '#';
  file.close();
  EXPECT_THAT(message_of<CorruptData>([&] { store->num_keys(); }), HasSubstr("byte " + std::to_string(header)));
}

TEST_F(FileStoreTest, ALockThatIsKeptIsAnErrorNotAHang) {
  const auto store = FileStore::create(path_, "run", {.lock_timeout = milliseconds(30)});
  const UniqueFd other(::open(path_.c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_EQ(::flock(other.get(), LOCK_EX), 0);
  EXPECT_THAT(message_of<StoreError>([&] { store->set("k", "v"); }), HasSubstr("may be stopped"));
  ASSERT_EQ(::flock(other.get(), LOCK_UN), 0);
  store->set("k", "v");
}

TEST_F(FileStoreTest, RemoveTakesOnlyItsOwnFile) {
  const auto first = FileStore::create(path_, "one");
  const auto second = FileStore::create(path_, "two");
  first->remove();
  EXPECT_TRUE(std::filesystem::exists(path_));
  second->remove();
  EXPECT_FALSE(std::filesystem::exists(path_));
  second->remove();
}

TEST_F(FileStoreTest, ProcessesMeetOverOneFile) {
  constexpr int kRanks = 4;
  std::vector<pid_t> children;
  for (int rank = 0; rank < kRanks; ++rank) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      try {
        const auto store = FileStore::open_or_create(path_, "run");
        for (int i = 0; i < 50; ++i) store->add("sum", rank);
        barrier(*store, "b", rank, kRanks, soon());
        ::_exit(store->add("sum", 0) == 50 * (0 + 1 + 2 + 3) ? 0 : 1);
      } catch (const std::exception& error) {
        std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
        ::_exit(2);
      }
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
}

}  // namespace
}  // namespace lockstep::store
