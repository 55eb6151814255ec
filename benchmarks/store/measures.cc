// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/store/measures.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <stdexcept>
#include <vector>

#include "benchmarks/store/clients.h"
#include "lockstep/base/deadline.h"
#include "proto/request.h"
#include "runtime/store/client/tcp_connection.h"
#include "runtime/store/client/tcp_store.h"
#include "runtime/store/endpoint.h"
#include "runtime/store/server/tcp_store_server.h"

namespace lockstep::bench {
namespace {

using store::TcpStore;
using store::TcpStoreServer;

Deadline patience() { return Deadline::after(std::chrono::seconds(60)); }

double percentile(std::vector<double>& values, double fraction) {
  const auto at = values.begin() + static_cast<std::ptrdiff_t>(static_cast<double>(values.size()) * fraction);
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

// Of column `i`.
double greatest(const std::vector<std::vector<double>>& rows, std::size_t i) {
  double most = rows.front()[i];
  for (const auto& row : rows) most = std::max(most, row[i]);
  return most;
}

double least(const std::vector<std::vector<double>>& rows, std::size_t i) {
  double least = rows.front()[i];
  for (const auto& row : rows) least = std::min(least, row[i]);
  return least;
}

double resident_mb() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmRSS:")) return std::stod(line.substr(6)) / 1024;
  }
  throw std::runtime_error("/proc/self/status has no VmRSS");
}

}  // namespace

OpsResult measure_ops(const std::string& operation, int clients, int count) {
  Clients processes(clients, 4, [&](int index, const net::HostPort& where, const auto& gate, std::span<double> out) {
    TcpStore store(where, patience());
    std::vector<std::string> keys;
    for (int i = 0; i < 64; ++i) keys.push_back(fmt::format("k{}_{}", index, i));
    for (const auto& key : keys) store.set(key, "12345678");
    const std::string counter = fmt::format("c{}", index);
    const auto once = [&](int i) {
      const auto& key = keys[static_cast<std::size_t>(i) & 63];
      if (operation == "set") {
        store.set(key, "12345678");
      } else if (operation == "get") {
        if (store.get(key, patience()) != "12345678") throw std::runtime_error("get has returned another value");
      } else {
        store.add(counter, 1);
      }
    };
    std::vector<double> times;
    times.reserve(static_cast<std::size_t>(count));
    gate();
    out[0] = now();
    for (int i = 0; i < count; ++i) {
      const double begun = now();
      once(i);
      times.push_back(now() - begun);
    }
    out[1] = now();
    out[2] = percentile(times, 0.5);
    out[3] = percentile(times, 0.99);
    if (operation == "add" && store.add(counter, 0) != count) throw std::runtime_error("add has lost a count");
  });
  const TcpStoreServer server;
  processes.start(server.address());
  processes.await_ready();
  processes.go();
  const auto rows = processes.finish();
  return {clients * count / (greatest(rows, 1) - least(rows, 0)), greatest(rows, 2) * 1e6, greatest(rows, 3) * 1e6};
}

WakeResult measure_wake(int trials) {
  // Row: when get returned, for each trial.
  Clients waiter(1, static_cast<std::size_t>(trials), [&](int, const net::HostPort& where, const auto& gate, auto out) {
    TcpStore store(where, patience());
    gate();
    for (int i = 0; i < trials; ++i) {
      store.add("waiting", 1);
      (void)store.get(fmt::format("w{}", i), patience());
      out[static_cast<std::size_t>(i)] = now();
    }
  });
  const TcpStoreServer server;
  waiter.start(server.address());
  waiter.await_ready();
  waiter.go();
  TcpStore store(server.address(), patience());
  std::vector<double> set_at;
  for (int i = 0; i < trials; ++i) {
    while (store.add("waiting", 0) <= i) {
    }
    // Its get comes right after; when it has reached the server nobody can tell from here.
    const timespec pause{0, 3'000'000};
    nanosleep(&pause, nullptr);
    set_at.push_back(now());
    store.set(fmt::format("w{}", i), "1");
  }
  auto woken = waiter.finish().front();
  for (std::size_t i = 0; i < woken.size(); ++i) woken[i] = (woken[i] - set_at[i]) * 1e6;
  return {percentile(woken, 0.5), percentile(woken, 0.99)};
}

JoinResult measure_join(int clients) {
  Clients processes(clients, 4, [&](int, const net::HostPort& where, const auto& gate, std::span<double> out) {
    const auto meet = [&](TcpStore& store, const std::string& name) {
      if (store.add(name, 1) == clients) store.set("go " + name, "1");
      const std::string go[] = {"go " + name};
      store.wait(go, patience());
    };
    gate();
    out[0] = now();
    TcpStore store(where, patience());
    out[1] = now();
    meet(store, "first");
    out[2] = now();
    meet(store, "second");
    out[3] = now();
  });
  const TcpStoreServer server;
  processes.start(server.address());
  processes.await_ready();
  processes.go();
  const auto rows = processes.finish();
  const double begun = least(rows, 0);
  return {(greatest(rows, 1) - begun) * 1e3, (greatest(rows, 2) - begun) * 1e3,
          (greatest(rows, 3) - greatest(rows, 2)) * 1e3};
}

ConnectionsResult measure_connections(int count, bool with_secret) {
  std::optional<store::Secret> secret;
  if (with_secret) secret = store::Secret::random();
  Clients processes(1, 3, [&](int, const net::HostPort& where, const auto& gate, std::span<double> out) {
    std::vector<store::TcpConnection> connections;
    connections.reserve(static_cast<std::size_t>(count));
    out[0] = now();
    const store::Endpoint server = {.address = where, .secret = secret, .role = "benchmark"};
    for (int i = 0; i < count; ++i) connections.push_back(store::TcpConnection::open(server, patience()));
    out[1] = now();
    // As measure_join() does it.
    std::string request;
    proto::write_request(request, {proto::Op::add, {{"/all"}, {}, 1}});
    proto::write_request(request, {proto::Op::wait, {{"/go"}, {}, 0}});
    for (auto& connection : connections) connection.send(request, patience());
    for (auto& connection : connections) (void)connection.receive(proto::Op::add, 1, patience());
    TcpStore(server, patience()).set("go", "1");
    for (auto& connection : connections) (void)connection.receive(proto::Op::wait, 1, patience());
    out[2] = now();
    gate();  // keeps them open while the memory is looked at
  });
  const TcpStoreServer server({.secret = secret});
  const double before = resident_mb();
  processes.start(server.address());
  processes.await_ready();
  const double after = resident_mb();
  processes.go();
  const auto row = processes.finish().front();
  return {row[1] - row[0], row[2] - row[1], after - before};
}

}  // namespace lockstep::bench
