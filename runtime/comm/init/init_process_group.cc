// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/init/init_process_group.h"

#include <fmt/format.h>
#include <stdio_ext.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <functional>
#include <memory>
#include <utility>

#include "lockstep/base/environment.h"
#include "lockstep/base/error.h"
#include "lockstep/base/intra_op_threads.h"
#include "lockstep/base/owner_process.h"
#include "runtime/base/cpu.h"
#include "runtime/base/host.h"
#include "runtime/base/logging.h"
#include "runtime/base/printable.h"
#include "runtime/base/procfs.h"
#include "runtime/base/unwind_guard.h"
#include "runtime/base/variables.h"
#include "runtime/comm/backend.h"
#include "runtime/comm/init/choose_backend.h"
#include "runtime/comm/init/rank_device.h"
#include "runtime/comm/init/settings.h"
#include "runtime/comm/init/uncaught.h"
#include "runtime/comm/init/watched_group.h"
#include "runtime/comm/init/watched_store.h"
#include "runtime/job/launcher_guard.h"
#include "runtime/job/step_board.h"
#include "runtime/net/route.h"
#include "runtime/rendezvous/join.h"
#include "runtime/rendezvous/meeting/meet.h"
#include "runtime/store/prefix_store.h"
#include "runtime/store/store_internals.h"
#include "runtime/trace/process_trace.h"

namespace lockstep {
namespace {

// Ranks of one host share its cores. A user who sets OMP_NUM_THREADS has decided.
void share_cores(const Environment& environment, int local_world_size) {
  if (const int processors = leave_openmp_place(); processors > 0) {
    log_info(
        "environment: OpenMP (OMP_PROC_BIND, OMP_PLACES or GOMP_CPU_AFFINITY) had bound this thread to a part of its "
        "{} processors; lockstep lets the thread use all of them",
        processors);
  }
  if (threads_by_variable(environment)) return;
  const int share = std::max(1, allowed_cores() / std::max(1, local_world_size));
  if (const auto text = environment.get("OMP_NUM_THREADS")) {
    log_warn(
        "environment: OMP_NUM_THREADS='{}' is not a number of threads, so this rank uses {}; give 1 or more, or unset "
        "it",
        printable(*text), share);
  }
  set_intra_op_threads(share);
}

// Once a job: by its launcher if that is ours, else by rank 0.
void warn_of_unknown_variables(const Environment& environment, int rank) {
  if (rank != 0 || environment.has("LOCKSTEP_LAUNCHER_PID")) return;
  for (const auto& line : unknown_variables(environment)) log_warn("environment: {}", line);
}

// The C library keeps a program's output to a pipe until some kilobytes are there. The launcher puts lines together, so
// they go to it as they are done. A stream that the program has made unbuffered stays so.
void show_lines_at_once(const Environment& environment) {
  struct stat out {};
  if (!environment.has("LOCKSTEP_LAUNCHER_PID") || fstat(STDOUT_FILENO, &out) != 0 || !S_ISFIFO(out.st_mode)) return;
  const bool is_unbuffered = __fbufsize(stdout) == 1;
  if (is_unbuffered || __flbf(stdout) != 0) return;
  // Behind a first operation on the stream too: given a buffer, glibc writes what is there and begins anew. Without one
  // it would keep the old buffer's limits, up to which puts() writes nothing.
  static std::array<char, BUFSIZ> buffer;
  if (std::setvbuf(stdout, buffer.data(), _IOLBF, buffer.size()) != 0) log_warn("stdout can't be written by lines");
}

// The watch over this rank's groups, from before the ranks meet. None where they share no server of ours: a world of
// one.
std::shared_ptr<WatchedJob> watch(const rendezvous::MeetingPlan& plan, const rendezvous::Meeting& meeting,
                                  const rendezvous::Identity& identity) {
  if (!meeting.endpoint || identity.world_size == 1) return nullptr;
  const bool is_the_launchers = plan.method == rendezvous::MeetingPlan::RendezvousMethod::launcher_store;
  return std::make_shared<WatchedJob>(
      meeting.store, std::make_shared<GroupWatch>(is_the_launchers ? StoreHost::launcher : StoreHost::rank_zero,
                                                  identity.rank, identity.restart_count));
}

// Heartbeats, of half a second, after which connections to the store that no call has used are let go.
constexpr int kBeatsToRest = 20;

// This rank becomes a member of the job's, in `scope`: at the relay of its launcher if there is one, else at the store.
void enter(WatchedJob& watched, const rendezvous::MeetingPlan& plan, const rendezvous::Meeting& meeting,
           const std::string& scope, const rendezvous::Identity& identity, const InitSettings& settings,
           const Deadline& deadline) {
  store::Endpoint endpoint = *meeting.endpoint;
  if (settings.relay && plan.method == rendezvous::MeetingPlan::RendezvousMethod::launcher_store) {
    endpoint.address = *settings.relay;
  }
  // A job of thousands of ranks keeps no connection that nobody needs.
  auto position = [of = watched.watch(), store = meeting.store, beats = std::make_shared<std::atomic<int>>(0)] {
    if (beats->fetch_add(1) % kBeatsToRest == 0) store::rest(*store);
    return of->position();
  };
  const membership::MemberInfo self{
      .rank = identity.rank, .world_size = identity.world_size, .process = membership::ProcessInfo::of_this_process()};
  watched.keep(std::make_shared<membership::MemberLink>(
      endpoint, scope, self,
      membership::LivenessOptions{
          .detect_silence = settings.detect_silence, .silence = settings.silence, .hang = settings.hang_timeout},
      membership::MemberCalls{
          .on_event = [of = watched.watch()](const membership::MemberEvent& event) { of->take(event); },
          .position = std::move(position),
          .on_word = [of = watched.scopes()](const std::string& group,
                                             std::string word) { of->deliver(group, std::move(word)); }},
      deadline));
}

std::shared_ptr<const store::Secret> secret_of(const rendezvous::Meeting& meeting) {
  if (!meeting.endpoint || !meeting.endpoint->secret) return nullptr;
  return std::make_shared<const store::Secret>(*meeting.endpoint->secret);
}

// Joins the others and starts this rank's part of the group that they choose together.
std::shared_ptr<ProcessGroup> start_among_others(const InitOptions& options, const InitSettings& settings,
                                                 const Environment& environment, const rendezvous::MeetingPlan& plan,
                                                 const rendezvous::Meeting& meeting, rendezvous::Identity& identity,
                                                 const std::shared_ptr<WatchedJob>& watched, const Deadline& deadline) {
  std::shared_ptr<store::Store> store = meeting.store;
  rendezvous::OnPlace on_place;
  std::function<void()> check;
  std::function<void(const Cause&)> on_throw;
  if (watched) {
    store = std::make_shared<WatchedStore>(std::move(store), watched->watch());
    on_place = [&](const std::string& scope) { enter(*watched, plan, meeting, scope, identity, settings, deadline); };
    check = [of = watched->watch()] { of->check(); };
    on_throw = [of = watched->watch()](const Cause& cause) { of->report_failure(cause); };
  }
  rendezvous::Joined joined = rendezvous::join(*store, identity, rendezvous::self_member(identity), deadline, on_place);
  share_cores(environment, identity.local_world_size);
  std::string address = net::own_address(meeting.address, rendezvous::count_hosts(joined.roster) > 1,
                                         net::interfaces_of_this_host(), plan.interface_wishes);
  GroupContext context{
      .identity = identity,
      .roster = std::move(joined.roster),
      .store = std::make_shared<store::PrefixStore>(joined.scope + "/group", std::move(store)),
      .timeout = settings.timeout,
      .device = {},
      .local_address = std::move(address),
      .secret = secret_of(meeting),
      .check = std::move(check),
      .on_throw = std::move(on_throw),
  };
  if (watched) context.scopes = watched->scopes();
  const DeviceChoice device = choose_device(settings, options.backend, backends(), context, environment, deadline);
  context.device = device.device;
  if (identity.rank == 0 && !device.why_not_gpu.empty()) {
    log_info("device cpu (auto; {})", device.why_not_gpu.substr(0, device.why_not_gpu.find(';')));
  }
  // A name is announced before the ranks wait for each other to choose together.
  if (options.backend != "auto") announce_backend(options.backend, context);
  BackendChoice choice = choose_backend(options.backend, backends(), context, deadline);
  if (options.backend == "auto") announce_backend(choice.backend->name, context);
  const auto create = [&] {
    context.make_group = group_maker(*choice.backend, watched);
    return choice.backend->create(context, deadline);
  };
  std::shared_ptr<ProcessGroup> group;
  try {
    group = create();
  } catch (const BackendUnavailable& error) {  // on every rank
    if (options.backend != "auto" || choice.backend->name != "shm") throw;
    const std::string reason = error.what();
    choice = choose_backend("tcp", backends(), context, deadline);
    choice.why = "auto; " + reason.substr(0, reason.find(';'));
    group = create();
  }
  // The line below names the backend; why it is this one is news where another was passed over.
  if (identity.rank == 0 && choice.why.starts_with("auto; "))
    log_info("backend {} ({})", choice.backend->name, choice.why);
  const bool on_gpu = context.device.kind != DeviceKind::cpu;
  log_info("{}", start_line(identity, meeting.address,
                            on_gpu ? fmt::format("{} on {}", choice.backend->name, context.device.str())
                                   : choice.backend->name,
                            intra_op_threads()));
  return group;
}

// Why this rank has no group. A rank that others did not come to has done nothing wrong.
Cause cause_of(const Error& error, int rank) {
  if (error.cause() != nullptr) return *error.cause();
  if (dynamic_cast<const Timeout*>(&error) != nullptr) {
    return {.kind = Cause::Kind::timeout, .reporter = rank, .text = error.what()};
  }
  if (dynamic_cast<const Mismatch*>(&error) != nullptr) {  // of the ranks' verdict nobody is to blame
    return {.kind = Cause::Kind::mismatch, .reporter = rank, .text = error.what()};
  }
  const auto process = membership::ProcessInfo::of_this_process();
  return {.kind = Cause::Kind::failed,
          .rank = rank,
          .reporter = rank,
          .host = process.host,
          .pid = process.pid,
          .sequence = 0,
          .text = fmt::format("rank {} ({}) failed: {}", rank, process.describe(), error.what())};
}

// A world of one shares no membership.
std::shared_ptr<ProcessGroup> alone(std::shared_ptr<ProcessGroup> group) {
  ProcessGroup* const face = group.get();
  return {face, [kept = std::move(group), unwinding = UnwindGuard()](ProcessGroup*) mutable {
            kept.reset();
            if (!unwinding.is_unwinding()) keep_program_left();
          }};
}

std::string own_command() {
  std::string words = read_kernel_file("/proc/self/cmdline");
  std::replace(words.begin(), words.end(), '\0', ' ');
  return words.substr(0, words.find_last_not_of(' ') + 1);
}

std::shared_ptr<ProcessGroup> start(const InitOptions& given) {
  const Environment environment = Environment::keep_of_process();
  InitOptions options = given;
  if (options.backend == "auto") options.backend = environment.get("LOCKSTEP_BACKEND").value_or("auto");
  const InitSettings settings = resolve(options, environment);
  require_known_backend(options.backend, backends(),
                        given.backend == "auto" ? "environment: LOCKSTEP_BACKEND" : "init_process_group");
  require_device(settings, options.backend == "nccl" ? std::string("backend 'nccl'")
                                                     : fmt::format("device '{}'", settings.device_text));
  const Deadline deadline = Deadline::after(settings.timeout);
  rendezvous::Identity identity = rendezvous::identify(environment, settings.overrides);
  rendezvous::ask_launcher(identity, deadline);
  if (identity.world_size > 1) {
    set_log_label(fmt::format("rank {}", identity.rank));
    set_uncaught_error_rank(identity.rank);
  }
  warn_of_unknown_variables(environment, identity.rank);
  if (identity.rank == 0 && given.backend != "auto" && environment.has("LOCKSTEP_BACKEND")) {
    log_warn(
        "environment: LOCKSTEP_BACKEND has no effect: the program itself asks for backend '{}'; unset the variable, or "
        "let the program ask for 'auto'",
        given.backend);
  }
  trace::open_trace({.rank = identity.rank,
                     .world_size = identity.world_size,
                     .pid = getpid(),
                     .host = host_name(),
                     .run_id = identity.run_id,
                     .command = own_command()},
                    environment.get("LOCKSTEP_TRACE_DIR").value_or(""));
  show_lines_at_once(environment);
  const auto ancestors = ancestors_of_this_process();
  install_guard(plan_launcher_guard(environment, ancestors));
  if (const auto launcher = environment.get_int("LOCKSTEP_LAUNCHER_PID")) {
    open_step_board(static_cast<int>(*launcher), identity.local_rank);
  }

  const auto plan = rendezvous::plan_meeting(identity, settings.method, environment, ancestors);
  const rendezvous::Meeting meeting = rendezvous::meet(plan, identity, deadline);
  auto watched = watch(plan, meeting, identity);
  const auto begin = [&] {
    return start_among_others(options, settings, environment, plan, meeting, identity, watched, deadline);
  };
  if (!watched) return alone(begin());
  std::shared_ptr<ProcessGroup> group;
  try {
    group = begin();
  } catch (const PeerLost&) {
    throw;  // a consequence
  } catch (const Error& error) {
    watched->watch()->report_failure(cause_of(error, identity.rank));  // so that the others can say it too
    throw;
  }
  return WatchedGroup::hold(std::move(watched), std::move(group));
}

}  // namespace

std::shared_ptr<ProcessGroup> init_process_group(const InitOptions& options) {
  install_uncaught_error_handler();
  try {
    return released_by_owner(start(options));
  } catch (...) {
    // Caught so that the stack is unwound even if the program catches nothing: rank 0's store lets the others read what
    // went wrong before it goes.
    throw;
  }
}

}  // namespace lockstep
