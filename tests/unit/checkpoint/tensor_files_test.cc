// SPDX-License-Identifier: Apache-2.0
// Files of tensors with an index, and what is said of files that fail.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "runtime/checkpoint/file_error.h"
#include "runtime/checkpoint/tensor_files.h"
#include "tests/support/error_of.h"
#include "tests/support/temporary_folder.h"

namespace lockstep::checkpoint::tensor_files_test {
namespace {

using lockstep::testing::expect_text;

namespace fs = std::filesystem;

class TensorFilesTest : public ::testing::Test {
 protected:
  void write(const std::string& file, const std::string& tensor, float value, const Metadata& metadata = {}) const {
    const std::vector<float> numbers(2, value);
    write_safetensors(folder_ / file, {{{tensor, DType::f32, {2}, std::as_bytes(std::span(numbers))}}}, metadata);
  }
  void write_index(const std::string& text) const { std::ofstream(folder_ / kIndex) << text; }
  static float first_of(const TensorFiles& files, const std::string& name) {
    std::vector<float> numbers(2);
    files.read(name, std::as_writable_bytes(std::span(numbers)));
    return numbers[0];
  }

  static constexpr const char* kIndex = "model.safetensors.index.json";
  const lockstep::testing::TemporaryFolder folder_;
};

TEST_F(TensorFilesTest, AnIndexIsReadAsOneFile) {
  write("model-00001-of-00002.safetensors", "a", 1, {{"format", "pt"}, {"part", "1"}});
  write("model-00002-of-00002.safetensors", "b", 2, {{"format", "pt"}, {"part", "2"}});
  write_index(R"({"metadata": {"total_size": 16, "made": "by hand"},
                  "weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}})");
  for (const fs::path& path : {folder_ / kIndex, fs::path(folder_)}) {
    const TensorFiles files(path);
    EXPECT_EQ(files.path(), folder_ / kIndex);
    ASSERT_EQ(files.tensors().size(), 2u);
    EXPECT_EQ(first_of(files, "a"), 1);
    EXPECT_EQ(first_of(files, "b"), 2);
    EXPECT_EQ(files.metadata(), (Metadata{{"format", "pt"}, {"made", "by hand"}}));
  }
}

TEST_F(TensorFilesTest, OneFileOfAFolderIsMeant) {
  write("model.safetensors", "a", 3);
  EXPECT_EQ(first_of(TensorFiles(folder_), "a"), 3);
  write("other.safetensors", "a", 4);
  EXPECT_THROW(TensorFiles{folder_}, InvalidArgument);
  EXPECT_EQ(first_of(TensorFiles(folder_ / "other.safetensors"), "a"), 4);
}

TEST_F(TensorFilesTest, AnIndexThatIsNoneOrSaysWhatIsNotSoIsRefused) {
  write("one.safetensors", "a", 1);
  for (const char* text :
       {"", "[]", "{}", R"({"weight_map": []})", R"({"weight_map": {"a": 3}})", R"({"weight_map": {"a": ""}})",
        R"({"weight_map": {"a": ".."}})", R"({"weight_map": {"a": "../one.safetensors"}})",
        R"({"weight_map": {"a": "/etc/passwd"}})", R"({"weight_map": {"b": "one.safetensors"}})",
        R"({"weight_map": {"a": "."}})", R"({"weight_map": {"a": "one.safetensors", "a": "one.safetensors"}})",
        R"({"weight_map": {"a": "one.safetensors\u0000 2"}})", "[[[[[[[["}) {
    write_index(text);
    EXPECT_THROW(TensorFiles{folder_ / kIndex}, CorruptData) << text;
  }
  const auto expect_refused = [](const fs::path& path) { EXPECT_THROW(TensorFiles{path}, InvalidArgument) << path; };
  ASSERT_EQ(::mkfifo((folder_ / "pipe.json").c_str(), 0600), 0);
  fs::create_symlink("/dev/zero", folder_ / "zero.json");
  for (const char* name : {"pipe.json", "zero.json", "none.json"}) expect_refused(folder_ / name);
  write_index(R"({"weight_map": {"a": "gone.safetensors"}})");
  expect_refused(folder_ / kIndex);
}

TEST(FileError, HasOperationPathReasonAndRemedy) {
  const SystemError full = file_error("writing", "run7/model.safetensors", "write", ENOSPC);
  EXPECT_EQ(full.error_number(), ENOSPC);
  expect_text(full.what(), {"writing 'run7/model.safetensors': write: No space left on device (errno 28); make room"});
  expect_text(file_error("removing", "run7", "", EROFS).what(),
              {"removing 'run7': Read-only file system (errno 30); its file system"});
  expect_text(file_error("opening", "run7/lock", "", EACCES).what(),
              {"Permission denied", "give uid " + std::to_string(::geteuid()) + ","});
}

TEST(FileError, HasARemedyForEachReason) {
  for (const int reason : {EACCES,    EPERM,  EROFS,  ENOSPC, EDQUOT, ENOENT, ESTALE,  ENOTDIR, ELOOP,     ENAMETOOLONG,
                           ENOTEMPTY, EMFILE, ENFILE, EFBIG,  ENOMEM, EIO,    EUCLEAN, ENODEV,  ETIMEDOUT, 4711}) {
    const std::string text = file_error("listing", "run7", "", reason).what();
    const std::string before = "listing 'run7': " + errno_text(reason) + "; ";
    ASSERT_TRUE(text.starts_with(before)) << text;
    EXPECT_GT(text.size(), before.size() + 15) << text;
  }
}

}  // namespace
}  // namespace lockstep::checkpoint::tensor_files_test
