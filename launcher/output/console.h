// SPDX-License-Identifier: Apache-2.0
// The output of all ranks on this process's stdout and stderr.
//
// Lines never mix, a slow reader delays only the ranks, and rank 0's progress bar stays at the bottom of a terminal, or
// becomes a line every two seconds elsewhere. Owned and called by the main thread. No call blocks.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/output/stream.h"
#include "lockstep/base/deadline.h"

namespace lockstep::launcher {

class Console {
 public:
  // If this many bytes wait, the ranks' pipes should be left unread, so that the ranks wait.
  static constexpr std::size_t kBacklogLimit = 256 * 1024;
  // Interval between two lines of a progress bar that is not on a terminal.
  static constexpr std::chrono::seconds kRedrawInterval{2};

  // For a program that writes only here and to the ranks' files, since the constructor ignores SIGPIPE and SIGXFSZ.
  // Throws SystemError if a descriptor isn't open.
  Console(int out_fd, int err_fd);

  // Writes a line of a rank, given without its end, as "[rank 2] text", or as "[rank 2] [lockstep] text" if the library
  // in the rank logged it.
  void line(Stream stream, int rank, std::string_view text);
  // Writes a line of another host's launcher: "[host1] text".
  void line_of_host(Stream stream, std::string_view host, std::string_view text);
  // Shows a redraw of rank 0's progress bar.
  void redraw(Stream stream, std::string_view text);
  // Writes a message of the launcher, "lockstep run: text", on stderr, below the last state of the bar, which becomes a
  // line; a later redraw begins a new bar.
  void message(std::string_view text);
  // Writes lines without a prefix on stderr, which belong to the last message.
  void detail(std::string_view text);

  // Passes each later message() and detail() to `recorder` too, and first the earlier ones, if this is the first
  // recorder. {} stops recording.
  void record(std::function<void(std::string_view text)> recorder);

  // Writes as much as possible without waiting, and the redraw that is due.
  void flush();
  // Returns true while bytes of `stream` wait for its reader: poll it for writing, then flush().
  bool waiting(Stream stream) const { return !sink(stream).pending.empty(); }
  int fd(Stream stream) const { return sink(stream).fd; }
  std::size_t backlog() const { return out_.pending.size() + err_.pending.size(); }
  // Returns the time until flush() has a redraw to show; nullopt if there is none.
  std::optional<Deadline::Duration> next_redraw() const;

  // Returns true if output was lost, for example because the disk is full. Output to a reader that left by itself does
  // not count.
  bool lost_output() const { return out_.lost || err_.lost; }

  // Call it after the last output: shows a redraw that no line has superseded.
  void finish();

 private:
  struct Sink {
    int fd = -1;
    bool terminal = false;
    bool broken = false;  // writing has failed for good
    bool lost = false;    // writing failed for a reason other than a missing reader
    std::string pending;
  };

  Sink& sink(Stream stream) { return stream == Stream::out || shared_ ? out_ : err_; }
  const Sink& sink(Stream stream) const { return stream == Stream::out || shared_ ? out_ : err_; }
  void put(Sink& sink, std::string_view text);
  void put_line(Stream stream, std::string_view prefix, std::string_view text);
  void drain(Sink& sink);
  void show_held_redraw();
  void note(std::string_view text);

  std::function<void(std::string_view)> recorder_;
  std::vector<std::string> unrecorded_;  // messages before the first recorder
  bool was_recorded_ = false;
  Sink out_;
  Sink err_;
  // Both descriptors refer to one file, pipe or terminal: out_ takes all, or each could hold half a line.
  bool shared_ = false;
  Stream bar_stream_ = Stream::err;
  std::string bar_;                    // on a terminal: the bottom line; empty if there is no bar
  std::string held_;                   // elsewhere: the redraw that waits to be shown
  std::optional<Deadline> next_line_;  // elsewhere: the earliest time for the next redraw
};

}  // namespace lockstep::launcher
