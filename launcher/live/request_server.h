// SPDX-License-Identifier: Apache-2.0
// Serves the clients of one listening socket with a thread of its own: a client sends one request, and reads the answer
// to its end.
//
// A slow client delays nobody. An error in a session ends all sessions but not the launcher; the first one is logged.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

#include "runtime/base/unique_fd.h"
#include "runtime/net/connection.h"
#include "runtime/net/event_loop.h"

namespace lockstep::launcher {

class RequestServer {
 public:
  // Appends the next part of an answer to `output`, which is empty, if there is one now. Returns false if none comes
  // later, and may be asked again nevertheless.
  using Answer = std::function<bool(std::string& output)>;
  // Returns an answer of one part.
  static Answer text(std::string part);

  struct Options {
    std::string_view end_of_request = "\n";
    std::size_t most_request_bytes = 256;
    std::size_t most_clients = 32;
    std::optional<std::chrono::seconds> client_limit = {};  // time for a request and its answer
    std::chrono::seconds farewell{0};  // time in which the destructor still sends what there is for the clients
    // Lines of the log, to which the error is added: the server has ended; sessions were ended.
    std::string_view ended;
    std::string_view failed;
    // The server's thread calls both. `accept` returns the listener's next client, or an empty descriptor if it is not
    // to be served; SystemError means that no descriptor is free for it. `answer` gets a request without its end, and
    // returns an empty function to refuse it.
    std::function<UniqueFd(int listener)> accept;
    std::function<Answer(std::string_view request)> answer;
  };

  // Throws SystemError.
  RequestServer(UniqueFd listener, Options options);
  ~RequestServer();
  RequestServer(const RequestServer&) = delete;
  RequestServer& operator=(const RequestServer&) = delete;

  // Asks the answers that had no next part for one. Any thread.
  void wake();
  net::EventLoop& loop() { return loop_; }

 private:
  struct Session {
    net::Connection connection;
    Answer answer = {};  // empty until the request is here
    std::string output = {};
    net::EventLoop::TimerId limit = {};
  };

  void serve();
  void on_error(const std::exception& error);
  void accept();
  void on_event(int fd, std::uint32_t events);
  // The next two return false once the session is over.
  bool read_request(Session& session);
  bool send(Session& session);
  void close_session(int fd);
  void send_answers();
  void end();

  const Options options_;
  UniqueFd listener_;
  net::EventLoop loop_;
  std::map<int, Session> sessions_;  // by descriptor
  bool ending_ = false;
  bool has_failed_ = false;
  std::atomic<bool> is_waking_{false};  // the loop will ask the answers
  std::thread thread_;                  // declared last: the thread uses the other members
};

}  // namespace lockstep::launcher
