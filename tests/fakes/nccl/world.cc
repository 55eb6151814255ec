// SPDX-License-Identifier: Apache-2.0
#include "tests/fakes/nccl/world.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <ctime>
#include <system_error>

namespace lockstep::fake_nccl {

World::World(std::string path, int size) : path_(std::move(path)), size_(size) {
  const int fd = ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0) throw std::system_error(errno, std::generic_category(), "fake nccl: " + path_);
  if (::ftruncate(fd, sizeof(Shared)) != 0) throw std::system_error(errno, std::generic_category(), "fake nccl: size");
  void* const memory = ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  ::close(fd);
  if (memory == MAP_FAILED) throw std::system_error(errno, std::generic_category(), "fake nccl: mmap");
  shared_ = static_cast<Shared*>(memory);
}

World::~World() { ::munmap(shared_, sizeof(Shared)); }

void World::forget() { ::unlink(path_.c_str()); }

void World::notify() {
  shared_->tick.fetch_add(1);
  ::syscall(SYS_futex, &shared_->tick, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void World::doze(std::uint32_t tick) {
  const timespec moment{0, 2'000'000};  // an abort comes without a tick of the peers'
  ::syscall(SYS_futex, &shared_->tick, FUTEX_WAIT, tick, &moment, nullptr, 0);
}

bool World::wait(const std::function<bool()>& holds, const std::atomic<bool>& aborted) {
  for (;;) {
    const std::uint32_t seen = tick();
    if (aborted.load()) return false;
    if (holds()) return true;
    doze(seen);
  }
}

}  // namespace lockstep::fake_nccl
