// SPDX-License-Identifier: Apache-2.0
#include "runtime/checkpoint/tensor_files.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <vector>

#include "lockstep/base/error.h"

namespace lockstep::checkpoint::tensor_files_test {
namespace {

namespace fs = std::filesystem;

class TensorFilesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "lockstep-files-XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { fs::remove_all(folder_); }

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
  fs::path folder_;
};

TEST_F(TensorFilesTest, AnIndexIsReadAsOneFile) {
  write("model-00001-of-00002.safetensors", "a", 1, {{"format", "pt"}, {"part", "1"}});
  write("model-00002-of-00002.safetensors", "b", 2, {{"format", "pt"}, {"part", "2"}});
  write_index(R"({"metadata": {"total_size": 16, "made": "by hand"},
                  "weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}})");
  for (const fs::path& path : {folder_ / kIndex, folder_}) {
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
  fs::remove(folder_ / kIndex);
  ASSERT_EQ(::mkfifo((folder_ / kIndex).c_str(), 0600), 0);
  EXPECT_THROW(TensorFiles{folder_ / kIndex}, InvalidArgument);
  fs::remove(folder_ / kIndex);
  fs::create_symlink("/dev/zero", folder_ / kIndex);
  EXPECT_THROW(TensorFiles{folder_ / kIndex}, InvalidArgument);
  fs::remove(folder_ / kIndex);
  write_index(R"({"weight_map": {"a": "gone.safetensors"}})");
  EXPECT_THROW(TensorFiles{folder_ / kIndex}, InvalidArgument);
  EXPECT_THROW(TensorFiles{folder_ / "none.json"}, InvalidArgument);
}

}  // namespace
}  // namespace lockstep::checkpoint::tensor_files_test
