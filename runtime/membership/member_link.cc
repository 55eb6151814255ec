// SPDX-License-Identifier: Apache-2.0
#include "runtime/membership/member_link.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <exception>
#include <functional>
#include <thread>
#include <type_traits>
#include <utility>

#include "lockstep/base/environment.h"
#include "lockstep/base/error.h"
#include "proto/push.h"
#include "proto/request.h"
#include "runtime/base/event_fd.h"
#include "runtime/base/logging.h"
#include "runtime/base/mutex.h"
#include "runtime/base/observed_clock.h"
#include "runtime/base/parse_timeout.h"
#include "runtime/base/printable.h"
#include "runtime/base/process_state.h"
#include "runtime/base/quiet_thread.h"
#include "runtime/membership/store_event.h"
#include "runtime/net/connection.h"
#include "runtime/net/stream.h"
#include "runtime/net/tcp_liveness.h"
#include "runtime/store/client/tcp_connection.h"

namespace lockstep::membership {
namespace {

using proto::Op;
using Clock = std::chrono::steady_clock;

// The thread runs at least so often, or as often as it sends heartbeats; no pause of it counts as more than twice that.
constexpr std::chrono::milliseconds kLook{200};
// Longest encoded cause in a report.
constexpr std::size_t kCauseBytes = 4096;

double seconds(std::chrono::nanoseconds time) { return std::chrono::duration<double>(time).count(); }

}  // namespace

std::optional<std::chrono::nanoseconds> silence_limit(const Environment& environment) {
  const std::string text = environment.get("LOCKSTEP_LIVENESS").value_or("on");
  if (text == "off") return std::nullopt;
  if (text == "on") return LivenessOptions{}.silence;
  try {
    const auto limit = std::chrono::ceil<std::chrono::milliseconds>(parse_timeout(text, "LOCKSTEP_LIVENESS"));
    if (limit >= LivenessOptions{}.silence) return limit;
  } catch (const InvalidArgument&) {  // it is said below what may stand there
  }
  throw InvalidArgument(fmt::format(
      "environment: LOCKSTEP_LIVENESS='{}' is unknown; give 'on' (a rank that gives no sign of life for 2 s is lost, "
      "the default), another number of seconds from 2 on, or 'off' (wait for ranks that don't answer)",
      printable(text)));
}

class MemberLink::Impl {
 public:
  Impl(const store::Endpoint& endpoint, std::string_view scope, const MemberInfo& self, const LivenessOptions& options,
       MemberCalls calls, const Deadline& deadline)
      : options_(options),
        calls_(std::move(calls)),
        self_(self),
        address_(endpoint.address.to_string()),
        look_(std::min<std::chrono::nanoseconds>(kLook, options.heartbeat)),
        clock_(2 * look_) {
    // Registration runs on this thread, so that its errors are thrown here; the link's thread gets a connection that
    // works.
    register_member(endpoint, scope, deadline);
    clock_.observe(Clock::now());
    thread_ = start_quiet_thread([this] { run(); });
  }

  ~Impl() { end(); }

  MemberPosition position() const { return call(calls_.position); }

  void goodbye(std::int64_t last) EXCLUDES(mutex_) {
    post({Op::goodbye, {{}, {}, last}}, true);
    end();
  }
  void report(const Cause& cause) EXCLUDES(mutex_) {
    const std::string bytes = encode(cause, kCauseBytes);
    if (cause.ends_group) {
      MutexLock lock(mutex_);
      has_reported_ = true;
    }
    // A member whose group continues is not in a hurry.
    await_answer(post({Op::report, {{}, {bytes}, 0}}, false), cause.ends_group ? options_.farewell : kDeadHost);
  }
  void send(std::string_view message) EXCLUDES(mutex_) {
    await_answer(post({Op::message, {{}, {message}, 0}}, false), kDeadHost);
  }
  void say(std::string_view group, const std::vector<int>& ranks, std::string_view word) EXCLUDES(mutex_) {
    const std::string to = fmt::format("{}", fmt::join(ranks, " "));
    post({Op::say, {{group}, {to, word}, 0}}, false);
  }
  bool is_answered() const EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return store_answers_ && !leaving_;
  }
  void forward(std::span<const ForwardedRequest> requests) EXCLUDES(mutex_) {
    {
      MutexLock lock(mutex_);
      if (leaving_) return;
      posted_ += write_requests(requests);
    }
    wakeup_.notify();
  }
  // Reports, unless something was reported, and ends when the store has it.
  void report_and_end(const std::string& how) EXCLUDES(mutex_) {
    bool has_reported = false;
    {
      MutexLock lock(mutex_);
      has_reported = has_reported_;
    }
    const MemberPosition at = position();
    if (has_reported) return goodbye(at.sequence);
    const std::string bytes = encode(Cause{.kind = Cause::Kind::failed,
                                           .rank = self_.rank,
                                           .reporter = self_.rank,
                                           .host = self_.process.host,
                                           .pid = self_.process.pid,
                                           .step = at.step,
                                           .sequence = at.sequence,
                                           .text = fmt::format("{} failed: {}", self_.describe(), how)},
                                     kCauseBytes);
    post({Op::report, {{}, {bytes}, 0}}, true);
    end();
  }

 private:
  // An exception of a callback is a fault of this process: the store is as good as before.
  template <typename Result, typename... Args>
  Result call(const std::function<Result(Args...)>& callback, std::type_identity_t<Args>... args) const noexcept {
    try {
      if (callback) return callback(std::forward<Args>(args)...);
    } catch (const std::exception& error) {
      log_error("membership: {} could not act on news about another rank: {}; if this rank hangs, end this run",
                self_.describe(), error.what());
    }
    return Result();
  }

  void register_member(const store::Endpoint& endpoint, std::string_view scope, const Deadline& deadline) {
    try {
      register_at(endpoint, scope, deadline);
    } catch (const net::ConnectionClosed& error) {
      throw StoreError(
          fmt::format("membership: the store at {} closed the connection while {} registered: {}; the process that "
                      "hosts the store (the launcher or rank 0) has ended: look at the output of that process",
                      address_, self_.describe(), error.what()));
    } catch (const StoreError& error) {
      throw StoreError(fmt::format("membership: {}", error.what()));
    }
  }

  void register_at(const store::Endpoint& endpoint, std::string_view scope, const Deadline& deadline) {
    store::TcpConnection connection = store::TcpConnection::open(endpoint, deadline, store::Expect::is_there);
    const std::string rank = std::to_string(self_.rank);
    const std::string world = std::to_string(self_.world_size);
    const std::string process = encode(self_.process);
    std::string bytes;
    proto::write_request(bytes, {Op::register_member, {{scope}, {rank, world, process, options_text()}, 0}});
    connection.send(bytes, deadline);
    const proto::Contents& reply = connection.receive(Op::register_member, 1, deadline);
    if (reply.number != proto::kOk) {
      throw StoreError(fmt::format(
          "the store at {} refused to register {}: {}; check that this address is that of this run's store", address_,
          self_.describe(), reply.values.empty() ? std::string_view("no reason given") : reply.values[0]));
    }
    if (!reply.values.empty()) host_ = decode_process_info(reply.values[0]);
    is_relayed_ = reply.values.size() > 1 && reply.values[1] == kRelayed;
    connection_ = std::move(connection).release();
    net::end_when_host_is_silent(connection_.fd(), kDeadHost);
  }

  // REGISTER's options.
  std::string options_text() const {
    std::string text = options_.detect_silence ? "" : "liveness=off";
    if (options_.hang.count() > 0) {
      text += fmt::format("{}hang-timeout={}", text.empty() ? "" : " ", options_.hang.count());
    }
    if (options_.silence > LivenessOptions{}.silence) {
      text += fmt::format("{}silence={}", text.empty() ? "" : " ", options_.silence / std::chrono::milliseconds(1));
    }
    return text;
  }

  // Has the thread send a request, and returns its number; after the last one the thread ends when that is answered.
  std::uint64_t post(const proto::Request& request, bool last) EXCLUDES(mutex_) {
    // Under one lock with the last request: nothing can be posted behind a goodbye.
    std::uint64_t number = 0;
    {
      MutexLock lock(mutex_);
      if (leaving_) return 0;
      proto::write_request(posted_, request);
      ++posted_count_;
      number = ++posted_ever_;
      leaving_ = last;
    }
    wakeup_.notify();
    return number;
  }

  // Until the store has that request, unless it is known not to answer, or the link's own thread asks.
  void await_answer(std::uint64_t request, std::chrono::nanoseconds limit) EXCLUDES(mutex_) {
    // An event's handler runs on the thread that would take the answer: it would wait for itself.
    if (thread_id_.load() == std::this_thread::get_id()) return;
    const Deadline deadline = Deadline::after(limit);
    MutexLock lock(mutex_);
    while (answered_ < request && store_answers_ && answered_changed_.wait_until(mutex_, deadline)) {
    }
  }

  // The thread ends by itself after the last request, or has ended as the store was lost.
  void end() EXCLUDES(mutex_) {
    {
      MutexLock lock(mutex_);
      leaving_ = true;
    }
    wakeup_.notify();
    if (thread_.joinable()) thread_.join();
  }

  // Everything below belongs to the thread.

  void run() {
    // The thread says itself who it is: thread_ may not be assigned yet when the first event calls back.
    thread_id_.store(std::this_thread::get_id());
    // However the link ends, no answer comes behind it: report() and send() must not wait for their whole limit.
    keep_link();
    set_store_answers(false);
  }

  // Wakes report() where no answer will come.
  void set_store_answers(bool answers) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    store_answers_ = answers;
    answered_changed_.notify_all();
  }

  void take_answer() EXCLUDES(mutex_) {
    unanswered_ = std::max(0, unanswered_ - 1);
    MutexLock lock(mutex_);
    ++answered_;
    answered_changed_.notify_all();
  }

  // Each turn reads before it judges and judges before it sends: what has come shows that the store lives, and only
  // bytes sent in earlier turns can have been acknowledged. The goodbye goes out behind everything posted before it,
  // and no heartbeat behind the goodbye.
  void keep_link() {
    try {
      heard_at_ = clock_.elapsed();
      Clock::time_point next_beat = Clock::now();
      std::optional<Deadline> farewell;
      while (true) {
        if (!take_frames()) return;
        if (has_posted()) beat();  // what follows is judged by where this member has come to
        if (take_posted() && !farewell) farewell = Deadline::after(options_.farewell);
        is_ending_ = farewell.has_value();
        // A silent store doesn't answer; it may still read what it was sent once it resumes.
        const bool in_vain = silent_ && output_.empty();
        if (farewell && (unanswered_ == 0 || in_vain || farewell->expired())) return;
        if (!farewell) judge();
        if (Clock::now() >= next_beat) {
          next_beat = Clock::now() + options_.heartbeat;
          beat();
        }
        if (!flush()) return;
        rest(next_beat);
        clock_.observe(Clock::now());
        if (!receive()) return;
      }
    } catch (const std::exception& error) {
      lose(error.what());
    }
  }

  void rest(Clock::time_point until) {
    const auto limit = std::min<Clock::duration>(until - Clock::now(), look_);
    const auto milliseconds = std::chrono::ceil<std::chrono::milliseconds>(limit).count();
    const short events = static_cast<short>(output_.empty() ? POLLIN : POLLIN | POLLOUT);
    std::array<pollfd, 2> entries{{{connection_.fd(), events, 0}, {wakeup_.fd(), POLLIN, 0}}};
    if (::poll(entries.data(), entries.size(), static_cast<int>(std::max<std::int64_t>(0, milliseconds))) < 0 &&
        errno != EINTR) {
      throw SystemError("poll of a member's connection", errno);
    }
    wakeup_.clear();
  }

  // False if the connection has ended; the loss was told then.
  bool receive() {
    while (const auto received = connection_.receive_now()) {
      if (*received == 0) return true;
      heard();
    }
    const int error = errno;
    take_frames();  // before the loss: a frame that came with the end may say why the connection ended
    lose_connection(error);
    return false;
  }

  bool flush() {
    if (connection_.send_now(output_)) return true;
    const int error = errno;
    if (receive()) lose_connection(error);  // what it had sent before says more
    return false;
  }

  // True once the last request is among what has been posted.
  bool has_posted() EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return posted_count_ > 0;
  }

  bool take_posted() EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    output_ += posted_;
    unanswered_ += posted_count_;
    posted_.clear();
    posted_count_ = 0;
    return leaving_;
  }

  // Behind the goodbye this connection is not a member's any more: the store would refuse a heartbeat. A store that
  // reads nothing doesn't need a second one.
  void beat() {
    if (is_ending_ || !output_.empty()) return;
    const MemberPosition at = position();
    const std::string flags = (this_process_is_traced() ? "traced " : "") + flags_of(at);
    proto::write_request(output_, {Op::heartbeat, {{}, {flags}, at.sequence}});
  }

  void heard() {
    heard_at_ = clock_.elapsed();
    if (!std::exchange(silent_, false)) return;
    set_store_answers(true);
    tell_of_store({.kind = MemberEvent::Kind::store_answers, .cause = {.text = "answers again"}});
  }

  // False if the bytes are not of this protocol, which was told then.
  bool take_frames() {
    while (!connection_.input().empty()) {
      const proto::Status status = reader_.read(connection_.input());
      if (status == proto::Status::need_more) break;
      if (status == proto::Status::malformed || !use(reader_.contents())) {
        lose("it sent what no store sends: " + reader_.reason());
        return false;
      }
      if (store_is_gone_) return false;
      connection_.consume(reader_.size());
    }
    return true;
  }

  bool use(const proto::Contents& frame) {
    switch (static_cast<std::uint8_t>(frame.number)) {
      case proto::kOk: take_answer(); return true;
      case proto::kRefused:
        take_answer();
        log_warn(
            "membership: the store at {} refused a request of this rank: {}; run the same build of lockstep on all "
            "ranks",
            address_, frame.values.empty() ? std::string_view("no reason given") : frame.values[0]);
        return true;
      case proto::kPushBeat: store_traced_ = !frame.values.empty() && frame.values[0] == "traced"; return true;
      case proto::kPushLost: return pass_on(MemberEvent::Kind::lost, frame);
      case proto::kPushSilent: return pass_on(MemberEvent::Kind::silent, frame);
      case proto::kPushFailed: return pass_on(MemberEvent::Kind::failed, frame);
      case proto::kPushLeft: return pass_on_leavers(frame);
      case proto::kPushForwarded: return pass_on_forwarded(frame);
      case proto::kPushStore: return pass_on_store(frame);
      case proto::kPushWord: return pass_on_word(frame);
      default: return true;  // of a later version
    }
  }

  bool pass_on(MemberEvent::Kind kind, const proto::Contents& frame) {
    if (frame.values.size() < 3) return false;
    const auto rank = parse_int(frame.values[0]);
    const auto number = parse_int(frame.values[1]);
    auto cause = decode_cause(frame.values[2]);
    if (!rank || *rank < 0 || *rank >= self_.world_size || !number || !cause) return false;
    if (cause->rank < -1 || cause->rank >= self_.world_size) return false;
    beat();  // how far this member has come may be lost with it
    tell({.kind = kind, .cause = std::move(*cause), .number = *number});
    return true;
  }

  bool pass_on_leavers(const proto::Contents& frame) {
    for (std::size_t i = 0; i + 1 < frame.values.size(); i += 2) {
      const auto rank = parse_int(frame.values[i]);
      const auto last = parse_int(frame.values[i + 1]);
      if (!rank || *rank < 0 || *rank >= self_.world_size || !last) return false;
      tell({.kind = MemberEvent::Kind::left,
            .cause = {.kind = Cause::Kind::left,
                      .rank = static_cast<int>(*rank),
                      .sequence = *last,
                      .text = fmt::format("rank {} left after collective {}", *rank, *last)}});
    }
    return true;
  }

  bool pass_on_forwarded(const proto::Contents& frame) {
    auto frames = read_frames(frame.values);
    if (!frames) return false;
    call(calls_.on_forwarded, std::move(*frames));
    return true;
  }

  bool pass_on_word(const proto::Contents& frame) {
    if (frame.values.size() < 2) return false;
    call(calls_.on_word, std::string(frame.values[0]), std::string(frame.values[1]));
    return true;
  }

  // The relay's news of its store. Behind its loss nothing more comes from there.
  bool pass_on_store(const proto::Contents& frame) {
    auto event = decode_store_event(frame.values);
    if (!event) return false;
    event->cause.reporter = self_.rank;
    set_store_answers(event->kind == MemberEvent::Kind::store_answers);
    tell(*event);
    store_is_gone_ = event->kind == MemberEvent::Kind::store_lost;
    return true;
  }

  // Is the store silent? Before more is sent, so that all that was sent can have been acknowledged.
  void judge() {
    if (!options_.detect_silence || silent_ || store_traced_) return;
    const auto silent_for = clock_.elapsed() - heard_at_;
    if (silent_for <= options_.silence) return;
    const ProcessState state = host_ ? state_of(*host_, self_.process) : ProcessState::unknown;
    if (state == ProcessState::traced) {
      heard_at_ = clock_.elapsed();
      return;
    }
    silent_ = true;
    set_store_answers(false);
    const bool answers = net::all_is_acknowledged(connection_.fd());
    std::string why = answers ? "its host still answers, so the process is stopped, overloaded or hangs"
                              : "its host doesn't answer either: it is down, or the network between is cut";
    if (state == ProcessState::stopped) {
      why = fmt::format("its process is stopped (SIGSTOP or Ctrl-Z): 'kill -CONT {}' resumes it", host_->pid);
    }
    tell_of_store(
        {.kind = MemberEvent::Kind::store_silent,
         .cause = {.kind = Cause::Kind::silent,
                   .text = fmt::format("stopped answering: nothing came from it for {:.1f} s of {:.1f} s allowed; {}",
                                       seconds(silent_for), seconds(options_.silence), why)},
         .host_answers = answers});
  }

  // The number is not a socket any more: the program has closed it, and perhaps opened something else.
  static bool is_of_program(int error) { return error == EBADF || error == ENOTSOCK; }

  // `error` is the errno with which the connection ended, 0 if the store closed it.
  void lose_connection(int error) {
    lose(error == 0 ? "it closed the connection" : errno_text(error), is_of_program(error));
  }

  void lose(const std::string& how, bool is_of_program = false) {
    if (std::exchange(lost_, true)) return;
    set_store_answers(false);  // first: who hears of the loss may have something to say
    if (is_of_program) {
      return tell({.kind = MemberEvent::Kind::failed,
                   .cause = {.kind = Cause::Kind::failed,
                             .rank = self_.rank,
                             .reporter = self_.rank,
                             .host = self_.process.host,
                             .pid = self_.process.pid,
                             .text = fmt::format("{} failed: its program has closed descriptor {}, which is lockstep's "
                                                 "connection to the job's store ({}): close what the program itself "
                                                 "has opened, and no range of numbers",
                                                 self_.describe(), connection_.fd(), how)}});
    }
    tell_of_store(
        {.kind = MemberEvent::Kind::store_lost,
         .cause = {.text = fmt::format("is lost: its connection ended: {}; its process ended, or the network to its "
                                       "host broke: look at its output",
                                       how)}});
  }

  void tell_of_store(MemberEvent event) {
    event.address = address_;
    event.host = host_;
    event.is_of_relay = is_relayed_;
    event.cause.reporter = self_.rank;
    tell(event);
  }

  void tell(const MemberEvent& event) EXCLUDES(mutex_) {
    {
      MutexLock lock(mutex_);
      if (leaving_) return;
    }
    // Without the lock: a handler may report().
    call(calls_.on_event, event);
  }

  const LivenessOptions options_;
  const MemberCalls calls_;
  const MemberInfo self_;
  const std::string address_;
  const EventFd wakeup_;
  std::optional<ProcessInfo> host_;

  mutable Mutex mutex_;
  std::string posted_ GUARDED_BY(mutex_);
  int posted_count_ GUARDED_BY(mutex_) = 0;
  std::uint64_t posted_ever_ GUARDED_BY(mutex_) = 0;
  std::uint64_t answered_ GUARDED_BY(mutex_) = 0;  // of these
  Condition answered_changed_;
  bool has_reported_ GUARDED_BY(mutex_) = false;
  bool store_answers_ GUARDED_BY(mutex_) = true;  // as far as the thread knows
  bool leaving_ GUARDED_BY(mutex_) = false;       // nothing is posted any more

  net::Connection connection_;
  std::string output_;
  proto::PushReader reader_{proto::PushFormat::frame};
  const std::chrono::nanoseconds look_;
  ObservedClock clock_;
  std::chrono::nanoseconds heard_at_{0};
  int unanswered_ = 0;  // requests but heartbeats
  bool lost_ = false;
  bool silent_ = false;
  bool store_traced_ = false;
  bool is_ending_ = false;      // nothing follows what was posted
  bool is_relayed_ = false;     // the connection leads to a relay
  bool store_is_gone_ = false;  // by the relay's word

  std::atomic<std::thread::id> thread_id_;
  std::thread thread_;
};

MemberLink::MemberLink(const store::Endpoint& endpoint, std::string_view scope, const MemberInfo& self,
                       const LivenessOptions& options, MemberCalls calls, const Deadline& deadline)
    : impl_(make_owned_here<Impl>(endpoint, scope, self, options, std::move(calls), deadline)) {}

MemberLink::~MemberLink() {
  if (!impl_.get_deleter().owner.is_here()) return;
  if (unwinding_.is_unwinding()) {
    impl_->report_and_end(
        fmt::format("an exception ended it after collective {}: see its own output", impl_->position().sequence));
  } else {
    impl_->goodbye(impl_->position().sequence);
  }
}

void MemberLink::goodbye(std::int64_t last) { impl_->goodbye(last); }
void MemberLink::report(const Cause& cause) { impl_->report(cause); }
void MemberLink::send(std::string_view message) { impl_->send(message); }
void MemberLink::say(std::string_view group, const std::vector<int>& ranks, std::string_view word) {
  impl_->say(group, ranks, word);
}
bool MemberLink::is_answered() const { return impl_->is_answered(); }
void MemberLink::forward(std::span<const ForwardedRequest> requests) { impl_->forward(requests); }

}  // namespace lockstep::membership
