// SPDX-License-Identifier: Apache-2.0
#include "launcher/run/job.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <span>
#include <utility>

#include "launcher/base/amounts.h"
#include "launcher/base/exit_codes.h"
#include "launcher/process/process_table.h"
#include "launcher/process/spawn.h"
#include "launcher/process/stacks.h"
#include "launcher/verdict/job_report.h"
#include "lockstep/base/error.h"
#include "runtime/base/host.h"
#include "runtime/net/stream.h"

namespace lockstep::launcher {
namespace {

// Subject of an epoll event: its kind and, for the last three kinds, the local rank.
enum class Source : std::uint32_t { signals, log, news, console_out, console_err, rank_end, rank_out, rank_err };
constexpr std::uint64_t tag(Source source, int rank = 0) {
  return (static_cast<std::uint64_t>(source) << 32) | static_cast<std::uint32_t>(rank);
}

// Descriptors for one rank: two pipes, its pidfd, and its connections to the stores.
constexpr std::uint64_t kDescriptorsPerRank = 12;
constexpr std::uint64_t kSpareDescriptors = 1024;
constexpr std::size_t kRanksWithLargePipes = 32;  // ranks on this host

// Returns true for the ending by an uncaught exception other than the failure of another rank, also behind a shell.
bool is_of_fatal_error(const ExitStatus& ending) {
  return ending.exit_code() == 128 + SIGABRT || (!ending.by_signal && ending.value == 1);
}

// Returns true for an error of torch's connections whose reason is another rank's end, or its silence, and not this
// rank's own port, interface or host name.
bool is_of_lost_peer(std::string_view error) {
  const auto has = [error](std::string_view text) { return error.find(text) != error.npos; };
  if (has("gloo/transport/tcp/device") || has("failed to listen")) return false;
  return has("gloo/transport/") || has("DistNetworkError") || has("DistStoreError");
}

// Describes the output of the ranks that is missing in their files, after `others`, which may be empty. Returns an
// empty string if both are complete.
std::string describe_lost_output(std::span<const RankProcess> ranks, std::string others) {
  std::string text = std::move(others);
  for (const auto& process : ranks) {
    for (const auto* output : {&process.out, &process.err}) {
      if (output->lost_bytes() == 0) continue;
      text += fmt::format("{}{} of {}", text.empty() ? "" : ", ",
                          count_of(static_cast<std::int64_t>(output->lost_bytes()), "byte"), output->path());
    }
  }
  return text.empty() ? text : fmt::format("output was lost: {}", text);
}

}  // namespace

Job::Job(JobOptions options, const Environment& environment, Console& console, Signals& signals, Guardian& guardian,
         LogRelay& log, const LifePipe& life, JobControl& control)
    : options_(std::move(options)),
      environment_(environment),
      console_(console),
      signals_(signals),
      guardian_(guardian),
      log_(log),
      life_(life),
      control_(control),
      tree_(guardian),
      host_(host_name()),
      epoll_(epoll_create1(EPOLL_CLOEXEC)),
      ranks_(static_cast<std::size_t>(options_.contract.own().ranks)),
      steps_(options_.contract.own().ranks),
      watch_({.hosts = options_.contract.hosts,
              .host = host_,
              .end_stopped = environment.get("LOCKSTEP_LIVENESS") != "off",
              .names_slow = !options_.is_crowded,
              .members = options_.members}),
      look_at_(Deadline::after(RankWatch::kLook)),
      ending_({.grace = options_.grace, .stop_timeout = options_.stop_timeout}, console_, tree_, ranks_) {
  if (!epoll_) throw SystemError("epoll_create1", errno);
  options_.contract.launcher_pid = getpid();
  options_.contract.launcher_fd = life.name();
  watch(signals_.fd(), EPOLLIN, tag(Source::signals));
  watch(log_.fd(), EPOLLIN, tag(Source::log));
  watch(control_.news_fd(), EPOLLIN, tag(Source::news));
}

int Job::run() {
  try {
    start_ranks();
  } catch (const Error&) {
    // The kill precedes the error message: the started ranks would wait for the missing ones until their own timeout.
    signal_all(SIGKILL);
    for (auto& process : ranks_) {
      if (!process.running() || !net::wait_readable(process.pidfd.get(), Deadline::after(RankEnding::kUnkillableLimit)))
        continue;
      process.ending = reap(process.pidfd.get());  // the init process of some containers does not reap them
    }
    throw;
  }
  while (!finished()) {
    wait_for_events();
    check_timers();
    pause_or_resume_reading();
  }
  return conclude();
}

void Job::start_ranks() {
  open_files_ = net::raise_open_files_limit(
      kSpareDescriptors + kDescriptorsPerRank * static_cast<std::uint64_t>(world_size(options_.contract.hosts)));
  const UniqueFd null = open_file("/dev/null", false);
  for (int local_rank = 0; local_rank < options_.contract.own().ranks; ++local_rank) start_rank(local_rank, null.get());
}

void Job::start_rank(int local_rank, int null_fd) {
  RankProcess& process = ranks_[static_cast<std::size_t>(local_rank)];
  const int rank = options_.contract.own().first_rank + local_rank;
  process.rank = rank;
  UniqueFd out;
  UniqueFd err;
  process.out = output_of(rank, Stream::out, out);
  process.err = output_of(rank, Stream::err, err);

  SpawnRequest request;
  request.path = options_.program;
  request.arguments = options_.command;
  request.environment = rank_environment(environment_, options_.contract, local_rank);
  // A rank is not a foreground job, so reading from a terminal would stop it.
  request.stdin_fd = rank == 0 && options_.reads_input && isatty(STDIN_FILENO) == 0 ? STDIN_FILENO : null_fd;
  request.stdout_fd = out.get();
  request.stderr_fd = err.get();
  request.inherited_fd = life_.rank_end();
  request.registration_fd = guardian_.registration_fd();
  request.signal_mask = signals_.original_mask();
  request.open_files = open_files_;
  if (const auto& bindings = options_.contract.bindings; !bindings.empty()) {
    request.processors = mask_of(bindings[static_cast<std::size_t>(local_rank)].processors);
  }
  Spawned spawned = spawn(request);
  process.pid = spawned.pid;
  process.pidfd = std::move(spawned.pidfd);

  watch(process.pidfd.get(), EPOLLIN, tag(Source::rank_end, local_rank));
  watch(process.out.fd(), EPOLLIN, tag(Source::rank_out, local_rank));
  watch(process.err.fd(), EPOLLIN, tag(Source::rank_err, local_rank));
}

RankOutput Job::output_of(int rank, Stream stream, UniqueFd& rank_end) const {
  Pipe pipe = make_pipe();
  set_non_blocking(pipe.read_end.get());
  // The call may fail: a user's total is limited, and with many ranks each would take from the others' share.
  if (ranks_.size() <= kRanksWithLargePipes) fcntl(pipe.read_end.get(), F_SETPIPE_SZ, RankOutput::kPieceBytes);
  rank_end = std::move(pipe.write_end);
  return options_.output->open(rank, stream, std::move(pipe.read_end), options_.contract.start());
}

void Job::watch(int fd, std::uint32_t events, std::uint64_t what) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = what;
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0 && errno != EEXIST) throw SystemError("epoll_ctl", errno);
}

void Job::forget(int fd) {
  if (fd < 0) return;
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr) != 0 && errno != ENOENT)
    throw SystemError("epoll_ctl", errno);
}

void Job::wait_for_events() {
  auto limit = Deadline::Duration::max();
  for (const auto& deadline : {look_at_, control_.due(), ending_.due()}) {
    if (deadline) limit = std::min(limit, deadline->remaining());
  }
  if (const auto redraw = console_.next_redraw()) limit = std::min(limit, *redraw);
  const auto deadline = limit == Deadline::Duration::max() ? Deadline::never() : Deadline::after(limit);

  for (const auto stream : {Stream::out, Stream::err}) {
    if (console_.waiting(stream)) {
      watch(console_.fd(stream), EPOLLOUT, tag(stream == Stream::out ? Source::console_out : Source::console_err));
    }
  }
  // In the order in which they became ready, so the rank that ended first is handled first.
  std::array<epoll_event, 64> events;
  int count = epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), deadline.poll_timeout_ms());
  if (count < 0 && errno != EINTR) throw SystemError("epoll_wait", errno);
  for (int i = 0; i < count; ++i) {
    handle(events[static_cast<std::size_t>(i)].data.u64);
    for (const Order& order : control_.take_orders()) obey(order);
  }
  console_.flush();
  // After the batch, since reap_others() stops at a rank that is not reaped yet. Ranks are reaped only through their
  // own descriptors, in the order of their ends, which waitid(P_ALL) does not keep.
  if (children_changed_) reap_others();
}

void Job::handle(std::uint64_t what) {
  const auto source = static_cast<Source>(what >> 32);
  const auto local_rank = static_cast<std::size_t>(what & 0xffffffffu);
  switch (source) {
    case Source::signals:
      for (const int signal : signals_.take()) on_signal(signal);
      return;
    case Source::log: show_log(); return;
    case Source::news: control_.take_news(); return;
    case Source::console_out: forget(console_.fd(Stream::out)); return;  // flush() follows
    case Source::console_err: forget(console_.fd(Stream::err)); return;
    case Source::rank_end: on_rank_end(ranks_[local_rank]); return;
    case Source::rank_out: read_output(ranks_[local_rank].out); return;
    case Source::rank_err: read_output(ranks_[local_rank].err); return;
  }
}

void Job::read_output(RankOutput& output) {
  if (reading_) output.read_some(console_);  // one piece each, so that a noisy rank doesn't silence the others
}

void Job::show_log() {
  if (!reading_) return;
  for (const auto& line : log_.take()) console_.message(line);
}

// While the console's reader is behind, output stays in the ranks' pipes: a rank that writes more blocks, as it would
// on a terminal, and the launcher's memory stays bounded.
void Job::pause_or_resume_reading() {
  const bool wanted = console_.backlog() < Console::kBacklogLimit;
  if (wanted == reading_) return;
  reading_ = wanted;
  if (wanted) {
    watch(log_.fd(), EPOLLIN, tag(Source::log));
  } else {
    forget(log_.fd());
  }
  for (int local_rank = 0; auto& process : ranks_) {
    for (const auto& [output, source] : {std::pair{&process.out, Source::rank_out}, {&process.err, Source::rank_err}}) {
      if (!output->open()) continue;
      if (wanted) {
        watch(output->fd(), EPOLLIN, tag(source, local_rank));
      } else {
        forget(output->fd());
      }
    }
    ++local_rank;
  }
}

void Job::on_signal(int signal) {
  if (signal == SIGCHLD) {
    children_changed_ = true;
  } else if (signal == SIGTSTP) {
    // Ctrl-Z: the ranks have their own process groups, so the terminal has not stopped them yet.
    signal_all(SIGSTOP);
    raise(SIGSTOP);
    signal_all(SIGCONT);
  } else if (!asks_to_end(signal)) {
    signal_all(signal);
  } else {
    ++stop_signals_;
    control_.signalled(signal);
  }
}

void Job::on_rank_end(RankProcess& process) {
  if (process.ending) return;
  rlimit cpu{};  // read while the process is a zombie
  if (prlimit(process.pid, RLIMIT_CPU, nullptr, &cpu) != 0) cpu.rlim_max = RLIM_INFINITY;
  auto ending = reap(process.pidfd.get());
  if (!ending) return;
  if (cpu.rlim_max != RLIM_INFINITY) ending->cpu_limit = static_cast<std::int64_t>(cpu.rlim_max);
  // The rank's last reports have arrived, and they explain its end.
  control_.take_news();
  process.ending = ending_of_rank(*ending, process.pid, steps_.program(local_rank_of(process)));
  forget(process.pidfd.get());  // it stays readable, and would wake the loop forever
  tree_.release_empty_groups(ranks_);
  // The rank's last output is printed before the message about its end. Its children may hold the pipes, so the end of
  // the pipes is not awaited.
  process.out.read_available(console_);
  process.err.read_available(console_);
  if (const auto text = process.err.fatal_error(); !text.empty() && is_of_fatal_error(*process.ending)) {
    Cause cause{.rank = -1, .reporter = process.rank, .host = host_, .pid = process.pid, .text = text};
    if (is_of_lost_peer(text)) control_.heard(cause);
    cause.kind = Cause::Kind::failed;
    cause.rank = process.rank;
    control_.heard(cause);
  }
  control_.rank_ended(
      {facts_of(process), *process.ending, ending_.is_killing() && ending->by_signal && ending->value == SIGKILL});
}

RankFacts Job::facts_of(const RankProcess& process) const {
  const bool is_asked = !process.ending || !process.ending->ok();
  return {.rank = process.rank,
          .host = host_,
          .pid = process.pid,
          .log = process.err.path(),
          .last_lines = is_asked ? process.err.last_lines() : std::vector<std::string>{},
          .memory_kills = process.ending && process.ending->may_be_killed() ? memory_kills_.since_start() : 0,
          .steps_done = steps_.steps_done(local_rank_of(process)),
          .saved_step = steps_.saved_step(local_rank_of(process))};
}

RankFacts Job::facts_of(int rank) const {
  const int local_rank = rank - options_.contract.own().first_rank;
  if (options_.contract.own().has(rank)) return facts_of(ranks_[static_cast<std::size_t>(local_rank)]);
  return {.rank = rank};
}

void Job::obey(const Order& order) {
  switch (order.kind) {
    case Order::Kind::say: console_.message(order.text); return;
    case Order::Kind::detail: console_.detail(order.text); return;
    case Order::Kind::end_ranks:
      steps_.set_stop(LauncherStop::ends_ranks);
      ending_.begin(RankEnding::Why::failed);
      return;
    case Order::Kind::pass_on:
      steps_.set_stop(LauncherStop::none);
      signal_all(order.signal);
      return;
    case Order::Kind::stop_to_resize:
      steps_.set_stop(LauncherStop::takes_host_in);
      ending_.ask_to_stop();
      return;
    case Order::Kind::kill: ending_.kill(); return;
    case Order::Kind::take_stacks: take_stacks(order); return;
  }
}

// The client may name any pid. For a pid outside the job the stacks of the rank's own process are taken.
void Job::take_stacks(const Order& order) {
  if (!options_.contract.own().has(order.rank)) return;
  const pid_t known = process_of_rank(getpid(), order.rank, order.pid);
  const pid_t started = ranks_[static_cast<std::size_t>(order.rank - options_.contract.own().first_rank)].pid;
  const pid_t pid = known > 0 ? known : started;
  control_.stacks_taken(
      {.question = order.question,
       .rank = order.rank,
       .lines = order.question == 0 ? stacks_of_hung_rank(pid) : threads_and_stacks(pid, Deadline::after(kHungLimit))});
}

void Job::reap_others() {
  bool guardian_died = false;
  children_changed_ = !tree_.reap_others(ranks_, guardian_died);
  if (!guardian_died) return;
  console_.message(tree_.replace_guardian(ranks_)
                       ? "the guardian process was killed, and a new one was started"
                       : "the guardian process was killed and is not replaced: if this launcher is killed too, "
                         "programs that wrapper scripts started may continue: in this case end them by hand");
}

void Job::look_at_ranks() {
  look_at_.reset();
  if (running() == 0 || ending_.is_after_failure()) return;
  look_at_ = Deadline::after(RankWatch::kLook);
  for (const auto& finding : watch_.look(ranks_, control_.ended(), Clock::now())) {
    if (finding.cause) {
      control_.heard(*finding.cause);
    } else {
      console_.message(finding.text);
    }
  }
}

void Job::check_timers() {
  if (look_at_ && look_at_->expired()) look_at_ranks();
  control_.check_timers();
  for (const Order& order : control_.take_orders()) obey(order);
  ending_.check();
}

bool Job::finished() {
  if (running() > 0) return ending_.has_given_up();
  const auto left = tree_.members();
  if (left.empty()) return true;
  if (ending_.is_killing()) return ending_.has_given_up();
  if (!ending_.is_under_way()) {
    console_.message(
        fmt::format("the ranks have ended and left {}; the first is {} (pid {}); this launcher ends what is left",
                    count_of(static_cast<int>(left.size()), "process", "es"), left.front().name, left.front().pid));
    ending_.begin(RankEnding::Why::left_over);
  }
  return false;
}

int Job::conclude() {
  // No timer of this host's ranks is due any more.
  look_at_.reset();
  ending_.conclude();
  for (auto& process : ranks_) {
    if (process.running()) forget(process.pidfd.get());
    // Before report_leftovers(): the last write to a file may fail too, and the bytes that it loses are reported there.
    process.out.finish(console_);
    process.err.finish(console_);
  }
  control_.ranks_are_gone(report_leftovers());
  for (const Order& order : control_.take_orders()) obey(order);
  while (!control_.is_over()) {
    wait_for_events();
    control_.check_timers();
    for (const Order& order : control_.take_orders()) obey(order);
  }
  for (const auto& line : log_.take()) console_.message(line);
  // The job waits for the console's reader, as any program does; a signal ends the wait.
  console_.finish();
  for (const int asked = stop_signals_; console_.backlog() > 0 && stop_signals_ == asked;) wait_for_events();
  const int code = control_.exit_code();
  return code == 0 && console_.lost_output() ? kExitInternal : code;
}

// Reports problems on this host apart from the endings of ranks. Returns an exit code, 0 if there are none.
int Job::report_leftovers() {
  int code = 0;
  for (const auto& entry : tree_.members()) {
    console_.message(
        fmt::format("process {} ({}) did not end within {} s of SIGKILL: the process waits for a device; look at the "
                    "kernel's log (dmesg), and reset the device or the host",
                    entry.pid, entry.name, RankEnding::kUnkillableLimit.count()));
    code = kExitInternal;
  }
  if (const auto lost = describe_lost_output(ranks_, options_.output->describe_lost()); !lost.empty()) {
    console_.message(lost);
    code = kExitInternal;
  }
  return code;
}

void Job::signal_all(int signal) { tree_.signal_all(ranks_, signal); }

int Job::running() const {
  return static_cast<int>(std::ranges::count_if(ranks_, [](const auto& process) { return process.running(); }));
}

}  // namespace lockstep::launcher
