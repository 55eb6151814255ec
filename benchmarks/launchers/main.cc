// SPDX-License-Identifier: Apache-2.0
// bench_launchers N: what N launchers of a job on N hosts cost its one store, without any rank.
//
// Each is a process with what a launcher has at the store (launcher/hosts/agent_link.h): two connections, and a
// heartbeat twice a second. This process is node rank 0's. Prints how long they take to come, to meet twice, as before
// a first start and before a restart, to hear one order, and to miss one that is killed; and how much memory this
// process has got more.
//
// bench_launchers HOSTS RANKS SECONDS: what the membership of RANKS ranks on each host costs it, where each has a
// connection to it, and where they go by their host's launcher: connections, what heartbeats are in bytes, and
// how long the last rank takes to hear of a failure. Each host is a process.
#include <fmt/format.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "benchmarks/store/clients.h"
#include "launcher/hosts/agent_link.h"
#include "runtime/base/plugin.h"
#include "runtime/membership/member_link.h"
#include "runtime/membership/member_relay.h"
#include "runtime/membership/membership_server.h"
#include "runtime/store/server/tcp_store_server.h"

namespace lockstep::bench {
namespace {

using launcher::AgentLink;
using launcher::AgentNews;
using News = launcher::WakingQueue<AgentNews>;

constexpr std::chrono::minutes kLimit{3};

enum Result { kCame, kFirstPlan, kSecondPlan, kOrder, kResults };

void raise_descriptor_limit() {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

double resident_megabytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmRSS:")) return std::stod(line.substr(6)) / 1024;
  }
  throw std::runtime_error("/proc/self/status has no VmRSS");
}

double processor_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

AgentLink::Options options_of(const net::HostPort& server, const store::Secret& secret, int hosts, bool serves) {
  return {.endpoint = {.address = server, .secret = secret, .role = "launcher"},
          .least = hosts,
          .most = hosts,
          .takes_spares = true,
          .serves = serves,
          .meet_timeout = kLimit,
          .deadline = Deadline::after(kLimit),
          .say = [](const std::string&) {}};
}

launcher::HostFacts facts_of(int index, int hosts) {
  return {.name = fmt::format("host{}", index),
          .pid = getpid(),
          .build = std::string(build_stamp()),
          .least = hosts,
          .nodes = hosts,
          .ranks = 8};
}

// The next of the news that `is_it`, which is waited for.
template <typename IsIt>
void await_news(News& news, IsIt is_it) {
  const Deadline deadline = Deadline::after(kLimit);
  while (!deadline.expired()) {
    for (const AgentNews& one : news.take()) {
      if (is_it(one)) return;
    }
    pollfd entry{news.fd(), POLLIN, 0};
    poll(&entry, 1, deadline.poll_timeout_ms());
  }
  throw std::runtime_error("what was waited for did not come");
}

bool is_order(const AgentNews& news) {
  const auto* word = std::get_if<launcher::AgentWord>(&news);
  return word != nullptr && std::holds_alternative<launcher::Order>(word->message);
}

// The life of one launcher. It ends with the second order.
void live(const AgentLink::Options& options, const launcher::HostFacts& facts, const std::function<void()>& gate,
          std::span<double> results) {
  News news;
  AgentLink agents(options, news);
  results[kCame] = now();
  for (const Result round : {kFirstPlan, kSecondPlan}) {
    gate();
    if (agents.meet(facts, {}).hosts.empty()) throw std::runtime_error("the plan has no hosts");
    results[round] = now();
  }
  gate();
  await_news(news, is_order);
  results[kOrder] = now();
  gate();
  await_news(news, is_order);
}

double last(const std::vector<std::vector<double>>& rows, Result of) {
  double latest = 0;
  for (const auto& row : rows) latest = std::max(latest, row[of]);
  return latest;
}

void measure(int hosts) {
  const store::Secret secret = store::Secret::random();
  // Before this process has threads.
  Clients others(hosts - 1, kResults, [&](int index, const net::HostPort& server, const auto& gate, auto results) {
    live(options_of(server, secret, hosts, false), facts_of(1 + index, hosts), gate, results);
  });
  News news;
  const auto members = std::make_shared<membership::MembershipServer>(
      membership::MembershipOptions{}, [&news](const membership::MemberNews& of) { launcher::put_news(news, of); });
  const store::TcpStoreServer server({.secret = secret, .extension = members});
  AgentLink first(options_of(server.address(), secret, hosts, true), news);
  const double memory = resident_megabytes();
  const double began = now();
  others.start(server.address());
  others.await_ready();
  const double all_came = now();
  const double memory_of_members = resident_megabytes();
  others.go();
  const auto meet = [&] {
    if (static_cast<int>(first.meet(facts_of(0, hosts), {}).hosts.size()) != hosts) {
      throw std::runtime_error("the plan lacks hosts");
    }
  };
  meet();
  others.await_ready();
  const double second = now();
  meet();
  others.await_ready();
  const double ordered = now();
  first.send(launcher::Order{.text = "hear this"});
  others.await_ready();
  const double memory_in_the_end = resident_megabytes();
  news.take();
  const double used = processor_seconds();
  const double killed = now();
  others.kill_one(hosts - 2);
  await_news(news, [](const AgentNews& one) {
    const auto* member = std::get_if<membership::MemberNews>(&one);
    return member != nullptr && member->cause && member->cause->kind == Cause::Kind::lost;
  });
  const double missed = now();
  const double cost = processor_seconds() - used;
  first.send(launcher::Order{.text = "and go"});
  const auto rows = others.finish();
  fmt::print("{} launchers\n", hosts);
  fmt::print("  all connected, with a secret, as members: {:.2f} s\n", all_came - began);
  fmt::print("  first meeting, until the last has the plan: {:.2f} s\n", last(rows, kFirstPlan) - all_came);
  fmt::print("  second meeting: {:.2f} s\n", last(rows, kSecondPlan) - second);
  fmt::print("  an order, until the last has it: {:.3f} s\n", last(rows, kOrder) - ordered);
  fmt::print("  one is killed, until the first host hears of it: {:.3f} s, of which {:.3f} s of this process's time\n",
             missed - killed, cost);
  fmt::print(
      "  memory of the store's process: {:.1f} MB before, {:.1f} MB more with all of them ({:.1f} KB each), {:.1f} "
      "MB more in the end\n",
      memory, memory_of_members - memory, 1024 * (memory_of_members - memory) / hosts, memory_in_the_end - memory);
}

// Bytes and segments that the connections of this process have carried, both ways.
struct Traffic {
  double bytes = 0;
  double segments = 0;
};

Traffic traffic_of_this_process() {
  Traffic traffic;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    tcp_info info{};
    socklen_t size = sizeof info;
    const int fd = std::stoi(entry.path().filename().string());
    if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) continue;
    traffic.bytes += static_cast<double>(info.tcpi_bytes_acked + info.tcpi_bytes_received);
    traffic.segments += info.tcpi_segs_in + info.tcpi_segs_out;
  }
  return traffic;
}

enum RankResult { kHeard, kRankResults };

// A host: a launcher's link, and those of its ranks, each of which is at another collective in each heartbeat.
void live_with_ranks(int host, int hosts, int ranks, const store::Endpoint& store, bool relays,
                     const std::function<void()>& gate, std::span<double> results) {
  using namespace membership;
  std::atomic<int> heard{0};
  std::atomic<std::int64_t> sequence{0};
  MemberRelay relay(store);
  MemberLink own(store, "agents", {.rank = host, .world_size = hosts + 1, .process = ProcessInfo::of_this_process()},
                 {}, {.on_forwarded = [&](auto frames) { relay.deliver(std::move(frames)); }}, Deadline::after(kLimit));
  relay.connect(&own);
  store::Endpoint endpoint = store;
  if (relays) endpoint.address = relay.address();
  {
    std::vector<std::unique_ptr<MemberLink>> links;
    for (int rank = 0; rank < ranks; ++rank) {
      links.push_back(std::make_unique<MemberLink>(
          endpoint, "ranks",
          MemberInfo{
              .rank = host * ranks + rank, .world_size = hosts * ranks + 1, .process = ProcessInfo::of_this_process()},
          LivenessOptions{},
          MemberCalls{.on_event =
                          [&](const MemberEvent& event) {
                            if (event.kind != MemberEvent::Kind::failed) return;
                            results[kHeard] = now();
                            ++heard;
                            heard.notify_one();
                          },
                      .position =
                          [&] {
                            return MemberPosition{
                                .sequence = ++sequence, .collective = "all_reduce", .step = 1000, .steps_done = 1000};
                          }},
          Deadline::after(kLimit)));
    }
    gate();
    for (int so_far = heard; so_far < ranks; so_far = heard) heard.wait(so_far);
  }
  relay.connect(nullptr);
}

void measure_ranks(int hosts, int ranks, int seconds, bool relays) {
  const store::Secret secret = store::Secret::random();
  Clients others(hosts, kRankResults, [&](int host, const net::HostPort& server, const auto& gate, auto results) {
    live_with_ranks(host, hosts, ranks, {.address = server, .secret = secret}, relays, gate, results);
  });
  const auto members = std::make_shared<membership::MembershipServer>();
  const store::TcpStoreServer server({.secret = secret, .extension = members});
  others.start(server.address());
  others.await_ready();
  const std::size_t connections = server.client_count();
  const Traffic before = traffic_of_this_process();
  const double used = processor_seconds();
  std::this_thread::sleep_for(std::chrono::seconds(seconds));
  const Traffic after = traffic_of_this_process();
  const double cost = processor_seconds() - used;
  membership::MemberLink reporter(
      {.address = server.address(), .secret = secret}, "ranks",
      {.rank = hosts * ranks, .world_size = hosts * ranks + 1, .process = membership::ProcessInfo::of_this_process()},
      {}, {}, Deadline::after(kLimit));
  others.go();
  const double reported = now();
  reporter.report({.kind = Cause::Kind::failed, .rank = hosts * ranks, .text = "no memory left on this host"});
  const auto rows = others.finish();
  double last_heard = 0;
  for (const auto& row : rows) last_heard = std::max(last_heard, row[kHeard]);
  fmt::print("{} hosts x {} ranks, {}\n", hosts, ranks, relays ? "by their launchers" : "each at the store");
  fmt::print("  connections to the store: {}\n", connections);
  fmt::print("  heartbeats: {:.0f} bytes and {:.0f} segments a second, {:.1f} % of a core\n",
             (after.bytes - before.bytes) / seconds, (after.segments - before.segments) / seconds,
             100 * cost / seconds);
  fmt::print("  a failure is heard by the last rank after {:.1f} ms\n", 1000 * (last_heard - reported));
}

}  // namespace
}  // namespace lockstep::bench

int main(int count, char** arguments) {
  try {
    const int hosts = count == 2 || count == 4 ? std::stoi(arguments[1]) : 0;
    if (hosts < 3)
      throw std::invalid_argument("give the number of launchers, 3 or more; or that, of ranks, of seconds");
    lockstep::bench::raise_descriptor_limit();
    if (count == 2) {
      lockstep::bench::measure(hosts);
      return 0;
    }
    for (const bool relays : {false, true}) {
      lockstep::bench::measure_ranks(hosts, std::stoi(arguments[2]), std::stoi(arguments[3]), relays);
    }
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_launchers: %s\n", error.what());
    return 1;
  }
}
