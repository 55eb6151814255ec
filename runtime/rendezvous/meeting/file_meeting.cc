// SPDX-License-Identifier: Apache-2.0
#include "runtime/rendezvous/meeting/file_meeting.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>

#include "lockstep/base/error.h"
#include "runtime/base/host.h"
#include "runtime/base/io.h"
#include "runtime/base/logging.h"
#include "runtime/base/printable.h"
#include "runtime/base/process_state.h"
#include "runtime/base/procfs.h"
#include "runtime/base/unique_fd.h"
#include "runtime/net/backoff.h"

namespace lockstep::rendezvous {
namespace {

constexpr std::size_t kMaxNoteBytes = 4096;
// The holder of a stale note's lock is about to remove the note.
constexpr std::chrono::seconds kRemoval{5};

// When the process started, in the kernel's ticks; 0 if there is none, or it has ended and is only not waited for.
std::int64_t start_of_process(int pid) {
  const auto entry = process_entry(pid);
  return entry && entry->alive() ? entry->start : 0;
}

InvalidArgument cannot(std::string_view what, const std::string& path, int error_number) {
  return InvalidArgument(
      fmt::format("init_method file://{}: can't {}: {}; give a path in a folder that every rank's host "
                  "shares and this user may write",
                  path, what, errno_text(error_number)));
}

// Another user could lead this rank to a store of his own.
void require_own(int fd, const std::string& path) {
  struct stat status = {};
  if (::fstat(fd, &status) != 0) throw cannot("look at it", path, errno);
  if (status.st_uid == ::geteuid() || status.st_uid == 0) return;
  throw InvalidArgument(
      fmt::format("init_method file://{}: the file belongs to user id {}, this process runs as {}, and whoever wrote "
                  "the file could take this run over; start all ranks as one user, or give a path of your own",
                  path, status.st_uid, ::geteuid()));
}

// Makes room for a new note, or says who is in the way.
void clear_stale(const std::string& path, const MeetingNote& own) {
  const auto found = read_note(path);
  if (!found) return;
  switch (state_of_writer(*found)) {
    case WriterState::gone: remove_stale_note(path, *found); return;
    case WriterState::alive:
      throw Mismatch(
          fmt::format("init_method file://{}: the file is in use by {}, which still runs, and this process is {}; if "
                      "both are rank 0 of one job, give each process its own rank, else give each job its own path",
                      path, found->writer(), own.writer()));
    case WriterState::unknown:
      throw Mismatch(
          fmt::format("init_method file://{}: the file is there already, written by {}, and this host can't tell "
                      "whether that process still runs; if that process has ended, as after a reboot of its host, "
                      "remove the file, else give another path",
                      path, found->writer()));
  }
}

}  // namespace

bool is_on_network(const std::string& path) {
  // Numbers of linux/magic.h and of the file systems' own sources.
  constexpr std::array<std::uint32_t, 12> kShared = {
      0x6969,      // NFS
      0x517b,      // SMB
      0xff534d42,  // CIFS
      0xfe534d42,  // SMB 2
      0x00c36400,  // Ceph
      0x0bd00bd0,  // Lustre
      0x47504653,  // GPFS
      0x19830326,  // BeeGFS
      0x65735546,  // FUSE: sshfs, GlusterFS and many that are local
      0x01021997,  // 9p
      0x5346414f,  // AFS
      0x20030528,  // OrangeFS
  };
  struct statfs status = {};
  const std::string folder = path.substr(0, path.rfind('/') + 1);
  if (::statfs(folder.c_str(), &status) != 0) return false;
  const auto kind = static_cast<std::uint32_t>(status.f_type);
  return std::find(kShared.begin(), kShared.end(), kind) != kShared.end();
}

MeetingNote note_of_this_process(net::HostPort store, std::string run) {
  return {{.address = std::move(store), .token = random_token(), .secret = store::Secret::random()},
          std::move(run),
          host_name(),
          boot_id(),
          pid_namespace(),
          ::getpid(),
          start_of_process(::getpid())};
}

WriterState state_of_writer(const MeetingNote& note) {
  // This host before its last boot, or another of the same name: hosts made from one image share theirs.
  if (note.boot_id != boot_id()) return WriterState::unknown;
  if (note.pid_namespace != pid_namespace()) return WriterState::unknown;
  return start_of_process(note.pid) == note.start ? WriterState::alive : WriterState::gone;
}

std::optional<MeetingNote> read_note(const std::string& path) {
  // Without blocking: a path may name a pipe.
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd) {
    if (errno == ENOENT) return std::nullopt;
    throw cannot("read it", path, errno);
  }
  require_own(fd.get(), path);
  std::string text;
  if (!read_all(fd.get(), text, kMaxNoteBytes + 1)) throw cannot("read it", path, errno);
  return decode_note(text, path);
}

void remove_stale_note(const std::string& path, const MeetingNote& stale) {
  const UniqueFd fd(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK));
  if (!fd && errno == ENOENT) return;
  if (!fd) throw cannot("remove it", path, errno);
  // A process removes a file only under that file's lock, so that no other removes it between the look and the removal.
  const Deadline deadline = Deadline::after(kRemoval);
  for (net::Backoff backoff; ::flock(fd.get(), LOCK_EX | LOCK_NB) != 0;) {
    const int error = errno;
    if (error == EINTR) continue;
    if (error != EWOULDBLOCK || !backoff.pause(deadline)) throw cannot("lock it to remove it", path, error);
  }
  struct stat locked = {};
  struct stat there = {};
  if (::fstat(fd.get(), &locked) != 0) throw cannot("look at it", path, errno);
  if (::stat(path.c_str(), &there) != 0) {
    if (errno == ENOENT) return;
    throw cannot("look at it", path, errno);
  }
  // The lock is on the file that was opened. Another process may have removed that one and linked a new note, which is
  // not stale.
  if (locked.st_ino != there.st_ino || locked.st_dev != there.st_dev) return;
  const auto note = read_note(path);
  if (!note || note->token != stale.token) return;
  log_warn("rendezvous: the file {} was left behind by an earlier run ({}, which is gone); this run replaces the file",
           path, stale.writer());
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) throw cannot("remove it", path, errno);
}

FileMeeting::FileMeeting(std::string path, MeetingNote note) : path_(std::move(path)), note_(std::move(note)) {
  clear_stale(path_, note_);
  // Written aside and linked, so that it is there whole and never takes another's place.
  const std::string aside = fmt::format("{}.{}.{}", path_, note_.pid, note_.token.substr(0, 8));
  const UniqueFd fd(::open(aside.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!fd) throw cannot("write next to it", path_, errno);
  try {
    const std::string text = encode(note_);
    if (write_all(fd.get(), text) < text.size()) throw cannot("write it", path_, errno);
    if (::link(aside.c_str(), path_.c_str()) != 0) {
      if (errno != EEXIST) throw cannot("create it", path_, errno);
      clear_stale(path_, note_);  // throws if another rank 0 was faster
      if (::link(aside.c_str(), path_.c_str()) != 0) throw cannot("create it", path_, errno);
    }
  } catch (...) {
    ::unlink(aside.c_str());
    throw;
  }
  ::unlink(aside.c_str());
}

FileMeeting::~FileMeeting() {
  if (!owner_.is_here()) return;
  try {
    // Read again: the file may be another run's by now, which took this one for gone.
    const auto found = read_note(path_);
    if (found && found->token == note_.token && ::unlink(path_.c_str()) != 0) throw cannot("remove it", path_, errno);
  } catch (const Error& error) {
    log_warn("rendezvous: {}; remove it by hand", error.what());
  }
}

MeetingNote await_note(const std::string& path, const std::string& run, const RefusedNote& refused,
                       const Deadline& deadline) {
  // A file on a shared folder announces itself to nobody, so it is looked for.
  for (net::Backoff backoff(std::chrono::milliseconds(1), std::chrono::milliseconds(50));;) {
    const auto found = read_note(path);
    const bool wrong = found && found->token == refused.token;
    const bool of_another_run = found && found->run != run;
    const bool gone = found && state_of_writer(*found) == WriterState::gone;
    if (found && !wrong && !of_another_run && !gone) return *found;
    if (backoff.pause(deadline)) continue;
    std::string seen = "there is no such file";
    if (wrong) {
      seen = fmt::format("what {} wrote {}", found->writer(), refused.why);
    } else if (gone) {
      seen = fmt::format("the file was left behind by an earlier run ({}, which is gone)", found->writer());
    } else if (of_another_run) {
      seen = fmt::format("the file is of another run ('{}' of {}, this is '{}')", printable(found->run),
                         found->writer(), run);
    }
    throw Timeout(
        fmt::format("init_method file://{}: rank 0 has not written where the store is, {}: {}; look at rank 0's "
                    "output, and see that rank 0's host shares this folder",
                    path, deadline.progress(), seen));
  }
}

}  // namespace lockstep::rendezvous
