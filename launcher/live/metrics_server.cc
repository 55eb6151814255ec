// SPDX-License-Identifier: Apache-2.0
#include "launcher/live/metrics_server.h"

#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <utility>

#include "launcher/live/metrics_text.h"
#include "lockstep/base/error.h"
#include "runtime/base/io.h"
#include "runtime/base/logging.h"
#include "runtime/base/quiet_thread.h"

namespace lockstep::launcher {
namespace {

constexpr std::size_t kMostScrapers = 16;
constexpr std::size_t kMostHttpBytes = 16 * 1024;
constexpr std::chrono::seconds kScrapeLimit{10};
constexpr std::chrono::seconds kUntilThereIsRoom{1};

}  // namespace

MetricsServer::MetricsServer(const net::HostPort& where, std::function<LiveReport()> report)
    : report_(std::move(report)), listener_(net::tcp_listen(where)) {
  loop_.add(listener_.get(), EPOLLIN, [this](std::uint32_t) { accept(); });
  thread_ = start_quiet_thread([this] { serve(); });
}

MetricsServer::~MetricsServer() {
  loop_.stop();
  thread_.join();
}

void MetricsServer::serve() {
  try {
    loop_.run([this](const std::exception& error) { on_error(error); });
  } catch (const std::exception& error) {
    log_warn("--metrics-port answers no more: {}", error.what());
  }
}

void MetricsServer::on_error(const std::exception& error) {
  while (!sessions_.empty()) close_session(sessions_.begin()->first);
  if (!std::exchange(has_failed_, true)) log_warn("--metrics-port left requests without an answer: {}", error.what());
}

void MetricsServer::accept() {
  UniqueFd fd;
  try {
    fd = net::tcp_try_accept(listener_.get());
  } catch (const SystemError&) {
    // Until a descriptor is free, the listener's readiness would keep this thread busy.
    loop_.change(listener_.get(), 0);
    loop_.run_after(kUntilThereIsRoom, [this] { loop_.change(listener_.get(), EPOLLIN); });
    return;
  }
  if (!fd || sessions_.size() >= kMostScrapers) return;
  const int number = fd.get();
  Session& session = sessions_[number];
  session.fd = std::move(fd);
  session.limit = loop_.run_after(kScrapeLimit, [this, number] { close_session(number); });
  loop_.add(number, EPOLLIN, [this, number](std::uint32_t) {
    if (!proceed(sessions_.at(number))) close_session(number);
  });
}

void MetricsServer::close_session(int fd) {
  loop_.cancel(sessions_.at(fd).limit);
  loop_.remove(fd);
  sessions_.erase(fd);
}

bool MetricsServer::proceed(Session& session) { return session.is_answered ? send(session) : read_request(session); }

bool MetricsServer::read_request(Session& session) {
  std::array<char, 4096> buffer;
  const auto bytes = uninterrupted([&] { return read(session.fd.get(), buffer.data(), buffer.size()); });
  if (bytes < 0 && errno == EAGAIN) return true;
  if (bytes <= 0) return false;
  session.request.append(buffer.data(), static_cast<std::size_t>(bytes));
  if (session.request.find("\r\n\r\n") == std::string::npos) return session.request.size() < kMostHttpBytes;
  session.out = http_answer(std::string_view(session.request).substr(0, session.request.find("\r\n")), report_());
  session.is_answered = true;
  return send(session);
}

bool MetricsServer::send(Session& session) {
  // The launcher ignores SIGPIPE.
  const std::size_t sent = write_all(session.fd.get(), session.out);
  if (sent == session.out.size() || errno != EAGAIN) return false;
  session.out.erase(0, sent);
  loop_.change(session.fd.get(), EPOLLOUT);
  return true;
}

}  // namespace lockstep::launcher
