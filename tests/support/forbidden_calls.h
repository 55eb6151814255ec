// SPDX-License-Identifier: Apache-2.0
// A file system that lacks a call, as FUSE, old kernels and some network file systems do.
#pragma once

#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <cstddef>
#include <iterator>

namespace lockstep::testing {

// From now on, for as long as this process lives, O_TMPFILE fails with `tmpfile`, and link(2) with `link`. False if
// this kernel has no filters.
inline bool forbid_calls(int tmpfile, int link) {
  const auto fails_with = [](int error) { return SECCOMP_RET_ERRNO | static_cast<unsigned>(error); };
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_link, 5, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_openat, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args[2])),
      BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, O_TMPFILE & ~O_DIRECTORY, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, fails_with(tmpfile)),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
      BPF_STMT(BPF_RET | BPF_K, link == 0 ? SECCOMP_RET_ALLOW : fails_with(link)),
  };
  const sock_fprog filter{.len = std::size(program), .filter = program};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

}  // namespace lockstep::testing
