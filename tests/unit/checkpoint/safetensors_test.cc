// SPDX-License-Identifier: Apache-2.0
#include "lockstep/checkpoint/safetensors.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/random.h"
#include "runtime/base/unique_fd.h"
#include "runtime/checkpoint/header.h"
#include "tests/support/child.h"
#include "tests/support/error_of.h"
#include "tests/support/forbidden_calls.h"
#include "tests/support/limited_to.h"
#include "tests/support/temporary_folder.h"

namespace lockstep::checkpoint::safetensors_test {
namespace {

using lockstep::testing::errno_of;
using lockstep::testing::error_of;
using lockstep::testing::expect_text;
using lockstep::testing::thrown_by;

namespace fs = std::filesystem;

class Safetensors : public ::testing::Test {
 protected:
  fs::path file(const std::string& name = "model.safetensors") const { return folder_ / name; }

  static std::string bytes_of(const fs::path& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  static void put(const fs::path& path, const std::string& bytes) {
    fs::remove(path);  // some file systems flush a file that is written over, which takes long
    std::ofstream(path, std::ios::binary) << bytes;
  }
  // A file of this header and these data.
  static std::string with_header(const std::string& header, const std::string& data) {
    std::uint64_t length = header.size();
    std::string bytes(8, '\0');
    std::memcpy(bytes.data(), &length, 8);
    return bytes + header + data;
  }
  void write_sample() const {
    write_safetensors(file(),
                      {{{"w", DType::f32, {2, 3}, std::as_bytes(std::span(floats_))},
                        {"ids", DType::i64, {2}, std::as_bytes(std::span(ids_))},
                        {"empty", DType::f32, {0, 7}, {}},
                        {"scalar", DType::u8, {}, std::as_bytes(std::span(byte_))}}},
                      {{"step", "12"}});
  }
  TensorSource w(std::int64_t elements = 6) const {
    return {"w", DType::f32, {elements}, std::as_bytes(std::span(floats_))};
  }
  void expect_files(std::ptrdiff_t count) const {
    EXPECT_EQ(std::distance(fs::directory_iterator(folder_), {}), count) << "something else is left";
  }
  std::string why_corrupt(const std::string& bytes) const {
    put(file("bad"), bytes);
    SCOPED_TRACE(bytes.substr(std::min(bytes.size(), std::size_t{8})));
    const std::string text = error_of<CorruptData>([&] { SafetensorsFile opened(file("bad")); });
    expect_text(text, {"reading '" + file("bad").string() + "'"});
    return text;
  }
  void expect_corrupt(const std::string& header, const std::string& data, const std::string& reason) const {
    expect_text(why_corrupt(with_header(header, data)), {reason});
  }

  const lockstep::testing::TemporaryFolder folder_;
  std::vector<float> floats_{1.5f, -2.0f, 0.0f, 3.25f, 1e-30f, 7.0f};
  std::vector<std::int64_t> ids_{-1, 1LL << 60};
  std::vector<std::uint8_t> byte_{200};
};

template <typename T>
std::vector<T> read_all(const SafetensorsFile& file, const std::string& name) {
  const TensorEntry& entry = file.find(name);
  std::vector<T> values(entry.bytes / sizeof(T));
  file.read(entry, std::as_writable_bytes(std::span(values)));
  return values;
}

TEST_F(Safetensors, ComesBackAsItWas) {
  write_sample();
  const SafetensorsFile opened(file());
  ASSERT_EQ(opened.tensors().size(), 4u);
  EXPECT_EQ(read_all<float>(opened, "w"), floats_);
  EXPECT_EQ(read_all<std::int64_t>(opened, "ids"), ids_);
  EXPECT_EQ(read_all<std::uint8_t>(opened, "scalar"), byte_);
  EXPECT_EQ(opened.find("w").shape, (std::vector<std::int64_t>{2, 3}));
  EXPECT_EQ(opened.find("w").dtype, DType::f32);
  EXPECT_EQ(opened.find("empty").shape, (std::vector<std::int64_t>{0, 7}));
  EXPECT_EQ(opened.find("scalar").shape, (std::vector<std::int64_t>{}));
  EXPECT_EQ(opened.metadata(), (Metadata{{"step", "12"}}));
  for (const auto& [name, entry] : opened.tensors()) EXPECT_EQ(entry.offset % size_of(entry.dtype), 0u) << name;
}

// The bytes of the format, spelled out: what others' readers and writers agree on.
TEST_F(Safetensors, BytesAreThoseOfTheFormat) {
  const std::vector<std::int32_t> values{1, 2};
  write_safetensors(file(), {{{"a", DType::i32, {2}, std::as_bytes(std::span(values))}}});
  const std::string header = R"({"a":{"data_offsets":[0,8],"dtype":"I32","shape":[2]}})";
  const std::string padded = header + std::string((8 - header.size() % 8) % 8, ' ');
  EXPECT_EQ(bytes_of(file()), with_header(padded, std::string("\1\0\0\0\2\0\0\0", 8)));
}

// As the reference implementation (Rust, serialize()) writes it: dtype first, no sorting of keys.
TEST_F(Safetensors, ReadsWhatOthersWrite) {
  put(file(),
      with_header(R"({"__metadata__":{"format":"pt"},"t":{"dtype":"F16","shape":[1,2],"data_offsets":[0,4]}}  )",
                  "abcd"));
  const SafetensorsFile opened(file());
  EXPECT_EQ(opened.find("t").dtype, DType::f16);
  EXPECT_EQ(opened.metadata().at("format"), "pt");
  put(file(), with_header("{}", ""));
  EXPECT_TRUE(SafetensorsFile(file()).tensors().empty());
  // What Python's safetensors takes beyond the format's own words: no metadata, and fields that it does not know.
  put(file(),
      with_header(R"({"__metadata__":null,"":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"later":7}})", "a"));
  EXPECT_EQ(SafetensorsFile(file()).find("").bytes, 1u);
  EXPECT_TRUE(SafetensorsFile(file()).metadata().empty());
}

TEST_F(Safetensors, SameTensorsMakeTheSameBytesInAnyOrder) {
  const auto bytes = std::as_bytes(std::span(floats_));
  write_safetensors(file("1"), {{{"a", DType::f32, {6}, bytes}, {"b", DType::f32, {3, 2}, bytes}}});
  write_safetensors(file("2"), {{{"b", DType::f32, {3, 2}, bytes}, {"a", DType::f32, {6}, bytes}}});
  EXPECT_EQ(bytes_of(file("1")), bytes_of(file("2")));
}

// And leaves nothing else. What a reader has open stays whole meanwhile.
TEST_F(Safetensors, TakesThePlaceOfTheOldFile) {
  put(file(), "old");
  write_sample();
  const SafetensorsFile opened(file());
  const std::vector<float> other(6, 9.0f);
  write_safetensors(file(), {{{"w", DType::f32, {2, 3}, std::as_bytes(std::span(other))}}});
  EXPECT_EQ(read_all<float>(opened, "w"), floats_);
  EXPECT_EQ(read_all<float>(SafetensorsFile(file()), "w"), other);
  expect_files(1);
}

TEST_F(Safetensors, AFailedWriteKeepsTheOldFile) {
  put(file(), "old");
  const auto bytes = std::as_bytes(std::span(floats_));
  for (const std::vector<TensorSource>& tensors : {std::vector<TensorSource>{w(), w()},
                                                   {{"__metadata__", DType::f32, {6}, bytes}},
                                                   {w(5)},
                                                   {w(-6)},
                                                   {{"a\xff", DType::f32, {6}, bytes}}}) {
    EXPECT_THROW(write_safetensors(file(), tensors), InvalidArgument);
    EXPECT_EQ(bytes_of(file()), "old");
    expect_files(1);
  }
}

TEST_F(Safetensors, APlaceThatCannotBeWrittenOrReadIsNamed) {
  EXPECT_THROW(write_safetensors(folder_ / "no" / "m", {}), InvalidArgument);
  EXPECT_THROW(write_safetensors(folder_, {}), InvalidArgument);
  EXPECT_THROW(write_safetensors("/dev/full/m", {}), InvalidArgument);
  EXPECT_THROW(write_safetensors("/proc/m", {}), SystemError);
  ASSERT_EQ(::mkfifo(file("pipe").c_str(), 0600), 0);
  for (const fs::path& path : {file("none"), fs::path(folder_), file("pipe")}) {
    EXPECT_THROW(SafetensorsFile{path}, InvalidArgument) << path;
  }
}

// Without a look at the limit the write would end the process with SIGXFSZ.
TEST_F(Safetensors, AFileThatUlimitDoesNotAllowIsAnErrorAndTheOldOneStays) {
  put(file(), "old");
  const std::vector<float> values(4096, 1.0f);
  const lockstep::testing::LimitedTo small(RLIMIT_FSIZE, 8192);
  const auto error = thrown_by<SystemError>([&] {
    write_safetensors(file(), {{{"w", DType::f32, {4096}, std::as_bytes(std::span(values))}}});
  });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->error_number(), EFBIG);
  expect_text(error->what(), {"'ulimit -f' allows 8 KiB"});
  EXPECT_EQ(bytes_of(file()), "old");
  expect_files(1);
}

TEST_F(Safetensors, ALinkIsFollowedAndStays) {
  fs::create_directory(folder_ / "deep");
  fs::create_symlink("deep/second", file("first"));
  fs::create_symlink(folder_ / "deep/real", file("deep/second"));
  for (int tries = 0; tries < 2; ++tries) {  // to a file that is to come, and to one that is there
    write_safetensors(file("first"), {{w()}});
    EXPECT_EQ(fs::read_symlink(file("first")), "deep/second");
    EXPECT_TRUE(fs::is_symlink(file("deep/second")));
    EXPECT_FALSE(fs::is_symlink(file("deep/real")));
    EXPECT_EQ(read_all<float>(SafetensorsFile(file("deep/real")), "w"), floats_);
  }
  expect_files(2);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_ / "deep"), {}), 2);
  fs::create_symlink("round", file("round"));
  EXPECT_THROW(write_safetensors(file("round"), {}), SystemError);
  EXPECT_TRUE(fs::is_symlink(file("round")));
}

// More than a pipe holds.
TEST_F(Safetensors, APipesReaderGetsTheBytesOfTheFile) {
  const std::vector<float> values(100'000, 2.0f);
  const std::vector<TensorSource> tensors{{"w", DType::f32, {100'000}, std::as_bytes(std::span(values))}};
  write_safetensors(file(), tensors);
  ASSERT_EQ(::mkfifo(file("pipe").c_str(), 0600), 0);
  expect_text(error_of([&] { write_safetensors(file("pipe"), tensors); }), {"nobody reads this pipe"});
  const UniqueFd reader(::open(file("pipe").c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  ASSERT_TRUE(reader);
  ASSERT_EQ(::fcntl(reader.get(), F_SETFL, 0), 0);
  std::string got;
  std::thread writer([&] { write_safetensors(file("pipe"), tensors); });
  got.resize(fs::file_size(file()));
  for (std::size_t done = 0; done < got.size();) {
    const ssize_t bytes = ::read(reader.get(), got.data() + done, got.size() - done);
    if (bytes > 0) done += static_cast<std::size_t>(bytes);  // none while the writer has not opened it
  }
  writer.join();
  EXPECT_EQ(got, bytes_of(file()));
  EXPECT_TRUE(fs::is_fifo(file("pipe")));
}

TEST_F(Safetensors, ADeviceStaysOne) {
  fs::create_symlink("/dev/null", file("link"));
  for (const fs::path& path : {fs::path("/dev/null"), file("link")}) write_safetensors(path, {{w()}});
  EXPECT_EQ(errno_of([&] { write_safetensors("/dev/full", {{w()}}); }), ENOSPC);
  for (const char* device : {"/dev/null", "/dev/full"}) EXPECT_TRUE(fs::is_character_file(device));
  EXPECT_TRUE(fs::is_symlink(file("link")));
}

TEST_F(Safetensors, TheLongestNameThatAFileSystemTakesIsWritten) {
  const std::string longest(255, 'n');
  write_safetensors(file(longest), {{w()}});
  EXPECT_EQ(read_all<float>(SafetensorsFile(file(longest)), "w"), floats_);
  expect_files(1);
  EXPECT_EQ(errno_of([&] { write_safetensors(file(longest + "n"), {{w()}}); }), ENAMETOOLONG);
}

// As FUSE, old kernels and some network file systems answer.
TEST_F(Safetensors, WithoutFilesThatHaveNoNameItIsWrittenAsWell) {
  for (const int error : {EOPNOTSUPP, EISDIR, EINVAL, ENOSYS}) {
    lockstep::testing::Child child([&](const lockstep::testing::Line&) {
      EXPECT_TRUE(lockstep::testing::forbid_calls(error, 0));
      EXPECT_EQ(::open(folder_.c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600), -1);
      write_sample();
      return HasFailure() ? 1 : 0;
    });
    EXPECT_EQ(child.wait(), 0) << error;
    EXPECT_EQ(SafetensorsFile(file()).tensors().size(), 4u);
    expect_files(1);
    fs::remove(file());
  }
}

// The parser of before took minutes: the time limit of this test is the assertion.
TEST_F(Safetensors, AHundredThousandTensorsAreReadInTheTimeOfATest) {
  constexpr std::size_t kTensors = 100'000;
  std::vector<TensorSource> tensors;
  const auto four = std::as_bytes(std::span(floats_)).first(4);
  for (std::size_t i = 0; i < kTensors; ++i) {
    tensors.push_back({"layers." + std::to_string(i) + ".weight", DType::f32, {1, 1}, four});
  }
  write_safetensors(file(), tensors);
  const SafetensorsFile opened(file());
  EXPECT_EQ(opened.tensors().size(), kTensors);
  EXPECT_EQ(read_all<float>(opened, "layers.99999.weight"), std::vector<float>{floats_[0]});
}

TEST_F(Safetensors, AnUnknownNameListsItsNeighbours) {
  write_sample();
  const SafetensorsFile opened(file());
  expect_text(error_of([&] { opened.find("mlp.weight"); }),
              {"no tensor 'mlp.weight' among the file's 4; give the name of a tensor of the file; the nearest "
               "names: 'ids', 'scalar'"});
}

TEST_F(Safetensors, CutAnywhereItIsCorrupt) {
  write_sample();
  const std::string whole = bytes_of(file());
  for (std::size_t length = 0; length < whole.size(); ++length) why_corrupt(whole.substr(0, length));
  why_corrupt(whole + "x");
  // Also where it is cut after it was opened.
  const SafetensorsFile opened(file());
  fs::resize_file(file(), fs::file_size(file()) - 4);
  EXPECT_THROW(read_all<std::uint8_t>(opened, "scalar"), CorruptData);
}

TEST_F(Safetensors, AHeaderLongerThanTheFileIsNotAllocated) {
  for (const std::uint64_t length : {~0ull, 1ull << 62, 100'000'001ull, 3ull}) {
    std::string bytes(8, '\0');
    std::memcpy(bytes.data(), &length, 8);
    expect_text(why_corrupt(bytes + "{}"), {"its header has " + std::to_string(length) + " bytes, but 2 follow"});
  }
}

TEST_F(Safetensors, EveryLieInTheHeaderIsNamed) {
  const std::string four = "abcd";
  const auto one = [](const std::string& dtype, const std::string& shape, const std::string& offsets) {
    return R"({"t":{"dtype":)" + dtype + R"(,"shape":)" + shape + R"(,"data_offsets":)" + offsets + "}}";
  };
  expect_corrupt(one("\"F32\"", "[1]", "[0,8]"), four, "tensor 't': data_offsets [0, 8] do not lie in the 4 bytes");
  expect_corrupt(one("\"F32\"", "[1]", "[4,0]"), four, "tensor 't': data_offsets [4, 0] do not lie");
  expect_corrupt(one("\"F32\"", "[2]", "[0,4]"), four, "F32 [2] takes 8 bytes, but its data_offsets [0, 4] hold 4");
  expect_corrupt(one("\"F32\"", "[4611686018427387904, 4]", "[0,0]"), "", "takes too many bytes");
  expect_corrupt(one("\"F32\"", "[9223372036854775808]", "[0,0]"), "", "dimension 9223372036854775808 is too large");
  expect_corrupt(one("\"F32\"", "[-1]", "[0,4]"), four, "a dimension is -1");
  expect_corrupt(one("\"F32\"", "[1.0]", "[0,4]"), four, "a dimension is 1.0");
  expect_corrupt(one("\"F32\"", "[18446744073709551616]", "[0,4]"), four, "a dimension is");
  expect_corrupt(one("\"F32\"", "{}", "[0,4]"), four, "shape is not a list");
  expect_corrupt(one("\"F32\"", "[1]", "[0]"), four, "data_offsets is not a pair");
  expect_corrupt(one("\"F32\"", "[1]", "[0,\"4\"]"), four, "an offset is \"4\"");
  expect_corrupt(one("\"F33\"", "[4]", "[0,4]"), four, "the format has no dtype \"F33\"");
  expect_corrupt(one("\"bool\"", "[4]", "[0,4]"), four, "the format has no dtype \"bool\"");
  expect_corrupt(one("7", "[4]", "[0,4]"), four, "the format has no dtype 7");
  expect_corrupt(one("\"I16\"", "[4]", "[0,4]"), four, "I16 [4] takes 8 bytes, but its data_offsets [0, 4] hold 4");
  expect_corrupt(one("\"F4\"", "[3]", "[0,2]"), "ab", "F4 [3] takes too many bytes");
  expect_corrupt(R"({"t":{"dtype":"F32","shape":[1]}})", four, "must have dtype, shape and data_offsets");
  expect_corrupt(R"({"t":4})", four, "must have dtype, shape and data_offsets");
  expect_corrupt(R"({"__metadata__":[]})", "", "__metadata__ is not a map");
  expect_corrupt(R"({"__metadata__":{"a":1}})", "", "__metadata__ 'a' is not text");
  expect_corrupt(R"({"__metadata__":{"a":"1","a":"2"}})", "", "'a' is there twice");
  expect_corrupt(R"([])", "", "does not begin with '{'");
  expect_corrupt(R"({"a":)", "", "is not JSON");
  expect_corrupt(R"({} x)", "", "is not JSON");
  expect_corrupt(std::string("{}\0", 3), "", "there is a NUL byte in it");
  expect_corrupt(std::string("{}\0{\"t\":1}", 10), "", "there is a NUL byte in it");
  expect_corrupt("{\"\xff\":1}", "", "is not JSON");
  expect_corrupt(R"({},)", "", "is not JSON");
  expect_corrupt(R"( {})", "", "does not begin with '{'");
  expect_corrupt("\xef\xbb\xbf{}", "", "does not begin with '{'");
  expect_corrupt(R"({"a":{"b":{"c":{}}}})", "", "nested too deeply");
  expect_corrupt("{\"a\":" + std::string(100000, '['), "", "nested too deeply");
  expect_corrupt("", "", "does not begin with '{'");
  const std::string t = R"("dtype":"U8","shape":[4],"data_offsets":)";
  expect_corrupt(
      "{\"a\":{" + t + "[0,4]},\"b\":{" + t + "[2,6]}}", "abcdef",
      "tensor 'b' begins at byte 2 of the file's data, but the tensors before it end at byte 4 (an overlap)");
  expect_corrupt("{\"a\":{" + t + "[0,4]},\"b\":{" + t + "[5,9]}}", "abcdefghi", "end at byte 4 (a hole)");
  expect_corrupt("{\"a\":{" + t + "[0,4]}}", "abcdefg", "holds 7 bytes of data, but its tensors take 4");
  expect_corrupt("{\"a\":{" + t + "[0,4]},\"a\":{" + t + "[0,4]}}", four, "'a' is there twice");
}

TEST_F(Safetensors, ATensorOfAnotherDTypeIsNamedOnlyWhenItIsAskedFor) {
  put(file(), with_header(R"({"mask":{"dtype":"BOOL","shape":[1,3],"data_offsets":[0,3]},)"
                          R"("q":{"dtype":"F4","shape":[2],"data_offsets":[3,4]},)"
                          R"("w":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
                          std::string("\1\0\1q\0\0\x80\x3f", 8)));
  const SafetensorsFile opened(file());
  EXPECT_EQ(opened.tensors().size(), 1u);
  EXPECT_EQ(read_all<float>(opened, "w"), std::vector<float>{1.0f});
  ASSERT_EQ(opened.foreign().size(), 2u);
  EXPECT_EQ(describe(opened.foreign().at("mask")), "BOOL [1, 3]");
  std::vector<std::uint8_t> mask(3);
  opened.read(opened.foreign().at("mask").entry, std::as_writable_bytes(std::span(mask)));
  EXPECT_EQ(mask, (std::vector<std::uint8_t>{1, 0, 1}));
  expect_text(error_of([&] { opened.find("mask"); }),
              {"tensor 'mask' is BOOL [1, 3], and lockstep has no such dtype; convert the tensor"});
}

TEST_F(Safetensors, EveryDTypeOfTheFormatHasItsSize) {
  const std::pair<const char*, std::size_t> kBitsOf[] = {
      {"F64", 64},        {"F32", 32},    {"F16", 16},    {"BF16", 16},   {"I64", 64},    {"I32", 32},
      {"I16", 16},        {"I8", 8},      {"U64", 64},    {"U32", 32},    {"U16", 16},    {"U8", 8},
      {"BOOL", 8},        {"C64", 64},    {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8},
      {"F8_E5M2FNUZ", 8}, {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"F4", 4}};
  for (const auto& [dtype, bits] : kBitsOf) {
    const auto header = [name = std::string(dtype)](std::size_t bytes) {
      return R"({"t":{"dtype":")" + name + R"(","shape":[2,4],"data_offsets":[0,)" + std::to_string(bytes) + "]}}";
    };
    put(file(), with_header(header(bits), std::string(bits, 'x')));
    const SafetensorsFile opened(file());
    EXPECT_EQ(opened.tensors().size() + opened.foreign().size(), 1u) << dtype;
    why_corrupt(with_header(header(bits + 1), std::string(bits + 1, 'x')));
  }
}

TEST_F(Safetensors, AFileOfAnotherFormatIsCalledWhatItIs) {
  const std::string rest(200, 'x');
  const std::pair<std::string, const char*> kFiles[] = {
      {"PK\x03\x04" + rest, "a zip archive, as torch.save writes it"},
      {"\x80\x02\x8a\x0al\xfc\x9c" + rest, "a pickle"},
      {"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n", "git lfs pull"},
      {"\n <!DOCTYPE HTML><html>" + rest, "an HTML or XML page"},
      {"<?xml version=\"1.0\"?><Error><Code>AccessDenied</Code>" + rest, "an HTML or XML page"},
      {std::string("\x1f\x8b\x08\0\0\0\0\0", 8) + rest, "compressed"},
      {"\x28\xb5\x2f\xfd" + rest, "compressed"},
      {"\x93NUMPY\x01" + rest, "a NumPy array"},
      {"GGUF" + rest, "a GGUF file"},
      {"\x89HDF\r\n\x1a\n" + rest, "an HDF5 file"}};
  for (const auto& [bytes, name] : kFiles) expect_text(why_corrupt(bytes), {name});
  // A header's length may begin as a pickle does.
  const std::string header = "{" + std::string(0x280 - 1, 'x');
  expect_text(why_corrupt(with_header(header, "")), {"is not JSON"});
}

// A damaged file may hold anything where names are.
TEST_F(Safetensors, NamesOfTheFileAreMadePrintable) {
  const std::string name = "a\\u001b[2J\\n" + std::string(1 << 20, 'x');
  const std::string text = why_corrupt(with_header("{\"" + name + "\":{\"dtype\":\"F32\"}}", ""));
  expect_text(text.substr(0, 400), {"tensor 'a?[2J xxx"});
  EXPECT_LT(text.size(), 1000u);
  EXPECT_EQ(text.find_first_of("\x1b\n"), std::string::npos);
  EXPECT_LT(why_corrupt(with_header("{\"t\":" + std::string(1 << 20, 'y') + "}", "")).size(), 1000u);
  put(file(), with_header("{\"" + name + "\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", "a"));
  const std::string error = error_of([&] { SafetensorsFile(file()).find("b"); });
  EXPECT_LT(error.size(), 1000u);
  EXPECT_EQ(error.find('\x1b'), std::string::npos);
}

// Whatever happens to the bytes, reading either works within the file or says CorruptData; it never does anything else.
TEST_F(Safetensors, MutatedFilesAreReadOrRefused) {
  write_sample();
  const std::string whole = bytes_of(file());
  Generator random(2026);
  int refused = 0;
  for (int round = 0; round < 3000; ++round) {
    std::string bytes = whole;
    for (std::uint64_t edits = 1 + random.below(3); edits > 0; --edits) {
      const std::size_t at = random.below(bytes.size());
      const std::string more(random.below(2), "0123456789[]{},:\" "[random.below(18)]);
      bytes.replace(at, random.below(3), more);
    }
    put(file("bad"), bytes);
    try {
      const SafetensorsFile opened(file("bad"));
      for (const auto& [name, entry] : opened.tensors()) {
        ASSERT_LE(entry.offset + entry.bytes, bytes.size());
        read_all<std::uint8_t>(opened, name);
      }
    } catch (const CorruptData&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 1000);
}

TEST(Header, SizesThatOverflowAreNoSizes) {
  const auto bytes = [](std::vector<std::int64_t> shape) { return tensor_bytes(DType::f32, shape); };
  EXPECT_EQ(bytes({}), 4u);
  EXPECT_EQ(bytes({3, 5}), 60u);
  EXPECT_EQ(bytes({0, 1LL << 62, 1LL << 62}), std::nullopt);
  EXPECT_EQ(bytes({1LL << 62}), std::nullopt);
  EXPECT_EQ(bytes({-1}), std::nullopt);
  EXPECT_EQ(bytes({0, 7}), 0u);
}

}  // namespace
}  // namespace lockstep::checkpoint::safetensors_test
