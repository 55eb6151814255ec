// SPDX-License-Identifier: Apache-2.0
// Where the output of all ranks comes together: this process's stdout and stderr.
//
// Lines never mix, a slow reader delays nobody but the ranks, and rank 0's progress bar stays at the bottom of a
// terminal, or becomes a line every two seconds elsewhere. Owned and called by the main thread. Nothing blocks.
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
  // At this many waiting bytes the ranks' pipes should be left unread, so that the ranks wait.
  static constexpr std::size_t kBacklogLimit = 256 * 1024;
  // Between two lines of a progress bar that is not on a terminal.
  static constexpr std::chrono::seconds kRedrawInterval{2};

  // Of a program that writes nowhere else but to files of the ranks'. Ignores SIGPIPE and SIGXFSZ. Throws SystemError
  // if one of them isn't open.
  Console(int out_fd, int err_fd);

  // A line of a rank's, without its end: "[rank 2] text", and "[rank 2] [lockstep] text" for what the library in it
  // logs.
  void line(Stream stream, int rank, std::string_view text);
  // A line of another host's launcher: "[host1] text".
  void line_of_host(Stream stream, std::string_view host, std::string_view text);
  // A redraw of rank 0's progress bar.
  void redraw(Stream stream, std::string_view text);
  // The launcher's own word: "lockstep run: text", on stderr. It stands below the last state of the bar, which becomes
  // a line; a later redraw begins a bar anew.
  void message(std::string_view text);
  // Bare lines on stderr, for what belongs to a message.
  void detail(std::string_view text);

  // From now on `recorder` gets each message() and detail() too; first those that came before, if there was none so
  // far. {}: nobody does.
  void record(std::function<void(std::string_view text)> recorder);

  // Writes what can be written without waiting, and the redraw whose time has come.
  void flush();
  // True while `stream` has bytes that wait for its reader: poll it for writing, then flush().
  bool waiting(Stream stream) const { return !sink(stream).pending.empty(); }
  int fd(Stream stream) const { return sink(stream).fd; }
  std::size_t backlog() const { return out_.pending.size() + err_.pending.size(); }
  // Time until flush() has a redraw to show; nothing if there is none.
  std::optional<Deadline::Duration> next_redraw() const;

  // True if something could not be written, for want of room, say. A reader that went by its own choice loses nothing.
  bool lost_output() const { return out_.lost || err_.lost; }

  // No more is coming: a redraw that no line has superseded is shown as the last one.
  void finish();

 private:
  struct Sink {
    int fd = -1;
    bool terminal = false;
    bool broken = false;  // nothing can be written any more
    bool lost = false;    // for another reason than that nobody reads
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
  std::vector<std::string> unrecorded_;  // before there was one
  bool was_recorded_ = false;
  Sink out_;
  Sink err_;
  bool shared_ = false;  // both go to one file, pipe or terminal: out_ takes all, or half a line could wait in each
  Stream bar_stream_ = Stream::err;
  std::string bar_;                    // on a terminal: what the bottom line shows; empty if there is none
  std::string held_;                   // elsewhere: the redraw that waits for its turn
  std::optional<Deadline> next_line_;  // elsewhere: no redraw is shown before it has passed
};

}  // namespace lockstep::launcher
