// SPDX-License-Identifier: Apache-2.0
// init_method file:///path: rank 0 writes where the store is into a file, the others read it there.
//
// The file appears whole or not at all, is readable by its user only, since the store's secret is in it, and is removed
// when rank 0 leaves. A kill -9 leaves it behind; so it also says who wrote it, and a file whose writer is gone is
// never taken for this run's. A file of another user's is never believed.
#pragma once

#include <optional>
#include <string>

#include "lockstep/base/deadline.h"
#include "lockstep/base/owner_process.h"
#include "runtime/net/address.h"
#include "runtime/rendezvous/records.h"

namespace lockstep::rendezvous {

// Whether `path` is, or would be, on a file system that other hosts may share. False if that can't be told.
bool is_on_network(const std::string& path);

// This process as the writer, with a new token and a new secret.
MeetingNote note_of_this_process(net::HostPort store, std::string run);

// Whether the writer still runs: known only within one kernel and one pid namespace.
enum class WriterState { alive, gone, unknown };
WriterState state_of_writer(const MeetingNote& note);

// The note at `path`, or nothing if there is none. InvalidArgument if it can't be read or is another user's,
// CorruptData if it is not a note.
std::optional<MeetingNote> read_note(const std::string& path);

// Removes the note at `path` if it is still `stale`: of two processes that have found it, the slower one must not
// remove what the faster one has put in its place. InvalidArgument if it can't be removed.
void remove_stale_note(const std::string& path, const MeetingNote& stale);

// Rank 0's side: the file, as long as this object lives.
class FileMeeting {
 public:
  // Replaces, with a warning, a file whose writer is gone. Throws Mismatch if the writer of another one runs or may
  // run, InvalidArgument if the folder is missing or can't be written, CorruptData if there is another kind of file.
  FileMeeting(std::string path, MeetingNote note);
  // Removes the file if it is still this one.
  ~FileMeeting();
  FileMeeting(const FileMeeting&) = delete;
  FileMeeting& operator=(const FileMeeting&) = delete;

 private:
  std::string path_;
  MeetingNote note_;
  OwnerProcess owner_;  // who may remove it
};

// A note that is not to be taken, by its token, and why: "leads to no store of that run".
struct RefusedNote {
  std::string token;
  std::string why;
};

// The other ranks' side: polls `path` for a note whose writer is not known to be gone and which is not the refused one.
// Timeout says what was found instead.
MeetingNote await_note(const std::string& path, const std::string& run, const RefusedNote& refused,
                       const Deadline& deadline);

}  // namespace lockstep::rendezvous
