// SPDX-License-Identifier: Apache-2.0
// A file that is there whole or not at all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

#include "lockstep/base/owner_process.h"
#include "lockstep/checkpoint/safetensors.h"
#include "runtime/base/hash.h"
#include "runtime/base/unique_fd.h"

namespace lockstep::checkpoint {

// Writes beside `path` and takes its place in commit(): readers see the old file or the new one, also after a crash or
// a kill -9. The bytes have no name until they are complete (O_TMPFILE), so that a killed process leaves nothing
// behind; on file systems without that they lie in "path.tmp.PID" meanwhile.
//
// Threads: one. Failure: InvalidArgument if the folder is not there or `path` names something that is not a file,
// SystemError for all else, naming file and call: EAGAIN if the reader of a pipe takes nothing for 5 minutes.
class AtomicFile {
 public:
  enum class Name : std::uint8_t {
    of_lockstep,  // refuses a link: somebody else has put it there
    of_user,      // follows links, and writes a file's bytes to a pipe or a character device: /dev/stdout
  };

  explicit AtomicFile(std::filesystem::path path, Name name = Name::of_lockstep);
  // Drops the written bytes unless commit() has returned.
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(std::span<const std::byte> bytes);
  // Data to disk, then the name, then the folder. Call it once, last.
  void commit();
  // The XXH3 of the written bytes, and their number.
  std::uint64_t hash() const { return hash_.value(); }
  std::uint64_t bytes() const { return written_; }

 private:
  std::string temporary_name() const;
  [[noreturn]] void fail(const char* call, int error_number) const;

  std::filesystem::path path_;
  std::filesystem::path folder_;
  std::string temporary_;  // its name for as long as it has one
  UniqueFd fd_;
  bool is_stream_ = false;  // a pipe or a device, which keeps its name
  std::uint64_t written_ = 0;
  Hasher64 hash_;
  OwnerProcess owner_;  // the process that may remove the file
};

struct WrittenFile {
  std::uint64_t bytes = 0;
  std::uint64_t xxh3 = 0;  // the whole file's
};

// write_safetensors() that returns the size and hash of the written file.
WrittenFile write_tensors(const std::filesystem::path& path, std::span<const TensorSource> tensors,
                          const Metadata& metadata = {}, AtomicFile::Name name = AtomicFile::Name::of_lockstep);

}  // namespace lockstep::checkpoint
