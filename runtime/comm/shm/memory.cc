// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/shm/memory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <utility>

#include "lockstep/base/error.h"
#include "runtime/base/mutex.h"
#include "runtime/base/resource_limit.h"

namespace lockstep::shm {
namespace {

using FileId = std::pair<dev_t, ino_t>;

// The memfds that this process has mapped. Global because what it keeps is the process's: its address space and its
// record locks.
struct Registry {
  Mutex mutex;
  std::map<FileId, std::weak_ptr<Mapping>> mappings GUARDED_BY(mutex);
};

Registry& registry() {
  static auto* instance = new Registry;  // never destroyed: a rank may be a static of the program
  return *instance;
}

// Memory is committed in steps, with a look at what is left before each: other processes take it too.
constexpr std::size_t kStep = std::size_t{256} << 20;
// Left to the others.
constexpr std::uint64_t kReserve = 64 << 20;

double mb(std::uint64_t bytes) { return static_cast<double>(bytes) / 1e6; }

BackendUnavailable out_of_memory(std::size_t bytes, const std::string& why) {
  return BackendUnavailable(
      fmt::format("shared memory: can't reserve {:.1f} MB: {}; shared memory counts as memory of this process: raise "
                  "the memory limit of the container, or use fewer ranks or a smaller model",
                  mb(bytes), why));
}

struct stat status_of(int fd) {
  struct stat status {};
  if (::fstat(fd, &status) != 0) throw SystemError("fstat of shared memory", errno);
  return status;
}

}  // namespace

UniqueFd create_memory(const std::string& name, std::size_t bytes) {
  // A file that grows beyond it ends the process with SIGXFSZ, shared memory too.
  const auto largest = resource_limit(RLIMIT_FSIZE);
  if (largest && bytes > *largest) {
    throw BackendUnavailable(
        fmt::format("shared memory: this rank needs {:.1f} MB, but the limit on a file's size, which also holds for "
                    "shared memory, is {:.1f} MB; raise this limit with 'ulimit -f unlimited', or use backend 'tcp'",
                    mb(bytes), mb(*largest)));
  }
  UniqueFd fd(::memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd) {
    const int error = errno;
    const bool refused = error == ENOSYS || error == EPERM || error == EACCES;
    throw BackendUnavailable(
        fmt::format("shared memory: memfd_create: {}{}", errno_text(error),
                    refused ? "; the kernel or its seccomp filter must allow it (Linux 3.17)" : ""));
  }
  for (std::size_t begin = 0; begin < bytes; begin += kStep) {
    const std::size_t length = std::min(kStep, bytes - begin);
    const std::uint64_t available = available_memory();
    const std::size_t missing = begin == 0 ? bytes : length;  // first all of it: better early than half-way
    if (missing + kReserve > available) {
      throw out_of_memory(bytes, fmt::format("{:.1f} MB are available, of which {:.1f} MB are kept back for others",
                                             mb(available), mb(kReserve)));
    }
    int error = 0;
    do {
      error = ::fallocate(fd.get(), 0, static_cast<off_t>(begin), static_cast<off_t>(length)) == 0 ? 0 : errno;
    } while (error == EINTR);
    if (error != 0) throw out_of_memory(bytes, errno_text(error));
  }
  if (::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    throw SystemError("sealing shared memory", errno);
  }
  return fd;
}

std::shared_ptr<Mapping> Mapping::of(UniqueFd fd, std::size_t bytes) {
  const struct stat status = status_of(fd.get());
  if (status.st_size < static_cast<off_t>(bytes)) {
    throw CorruptData(
        fmt::format("shared memory: another rank sent this rank a file of {} bytes, and at least {} are needed; run "
                    "the same build of lockstep on all ranks",
                    status.st_size, bytes));
  }
  const FileId id(status.st_dev, status.st_ino);
  MutexLock lock(registry().mutex);
  std::weak_ptr<Mapping>& known = registry().mappings[id];
  if (auto mapping = known.lock()) {
    mapping->duplicates_.push_back(std::move(fd));
    return mapping;
  }
  void* data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd.get(), 0);
  if (data == MAP_FAILED) {
    const int error = errno;
    registry().mappings.erase(id);
    throw BackendUnavailable(
        fmt::format("shared memory: this rank can't map {:.1f} MB: {}; raise the limit on address space (ulimit -v)",
                    static_cast<double>(bytes) / 1e6, errno_text(error)));
  }
  std::shared_ptr<Mapping> mapping(new Mapping(std::move(fd), static_cast<std::byte*>(data), bytes));
  known = mapping;
  return mapping;
}

Mapping::Mapping(UniqueFd fd, std::byte* data, std::size_t bytes) : fd_(std::move(fd)), data_(data), bytes_(bytes) {}

Mapping::~Mapping() {
  ::munmap(data_, bytes_);
  MutexLock lock(registry().mutex);
  for (auto entry = registry().mappings.begin(); entry != registry().mappings.end();) {
    entry = entry->second.expired() ? registry().mappings.erase(entry) : std::next(entry);
  }
}

}  // namespace lockstep::shm
