// SPDX-License-Identifier: Apache-2.0
// What is measured of the store, each with its server in this process and its clients in others.
// benchmarks/peers/torch_store.py measures the same of PyTorch's, in the same way.
#pragma once

#include <optional>
#include <string>

#include "runtime/store/secret.h"

namespace lockstep::bench {

struct OpsResult {
  double per_second;  // of all clients together
  double p50_us;      // of the slowest client
  double p99_us;
};
// `operation`: set, get, add; values of 8 bytes.
OpsResult measure_ops(const std::string& operation, int clients, int count);

struct WakeResult {
  double p50_us;
  double p99_us;
};
// From before the set in one process until the get that waited for it has returned in another.
WakeResult measure_wake(int trials);

// Milliseconds. All clients begin at once.
struct JoinResult {
  double connected;  // from the begin until the last has connected
  double first;      // from the begin until the last has left a first barrier
  double second;     // from there until the last has left a second barrier
};
// A barrier is one ADD by each and a wait for the key that the last one sets, as it is done with PyTorch's store.
JoinResult measure_join(int clients);

struct ConnectionsResult {
  double connect_s;  // all connected and greeted, one after the other
  double barrier_s;  // from there until all have left a barrier of all
  double server_mb;  // resident memory of the server's process while all are connected, less that before
};
// `count` connections of one process. With a secret, each proves that it knows it.
ConnectionsResult measure_connections(int count, bool with_secret);

}  // namespace lockstep::bench
