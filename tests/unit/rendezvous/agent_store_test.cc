// The client of a torchrun agent's store, against servers of both eras.
#include "runtime/rendezvous/agent_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <map>
#include <thread>

#include "runtime/base/error.h"
#include "runtime/net/stream.h"
#include "runtime/net/tcp_socket.h"
#include "runtime/store/tcp_store.h"
#include "runtime/store/tcp_store_server.h"

namespace lockstep::rendezvous {
namespace {

using namespace std::chrono_literals;
using proto::Dialect;
using proto::Op;
using ::testing::AllOf;
using ::testing::HasSubstr;

Deadline soon() { return Deadline::after(20s); }

TEST(AgentStore, OfToday) {
  const store::TcpStoreServer server;
  AgentStore agent(server.address(), soon());
  EXPECT_EQ(agent.dialect(), Dialect::current);
  EXPECT_EQ(agent.local_address().host, "127.0.0.1");
  agent.set("k", "v", soon());
  EXPECT_EQ(agent.get("k", soon()), "v");
  // A client of PyTorch's finds it under the same name.
  store::TcpStore other(server.address(), soon());
  EXPECT_EQ(other.get("k", soon()), "v");
  std::thread sets([&] { other.set("later", "came"); });
  EXPECT_EQ(agent.get("later", soon()), "came");
  sets.join();
  agent.erase("k", soon());
  EXPECT_THROW(agent.get("k", Deadline::after(10ms)), Timeout);
  // The connection of the wait that was given up is not used again.
  agent.set("k", "w", soon());
  EXPECT_EQ(agent.get("k", soon()), "w");
}

// As PyTorch 1.13's: the first nine bytes of a greeting are a "set" with a key of an absurd length, at which it closes.
class OldServer {
 public:
  // Serves that many connections, one after the other.
  explicit OldServer(int connections) : listener_(net::tcp_listen({"127.0.0.1", 0})) {
    thread_ = std::thread([this, connections] {
      for (int i = 0; i < connections; ++i) serve(net::tcp_accept(listener_.get(), soon()));
    });
  }
  ~OldServer() { thread_.join(); }
  net::HostPort address() const { return net::local_address(listener_.get()); }
  const std::map<std::string, std::string>& values() const { return values_; }

 private:
  void serve(const UniqueFd& client) {
    std::string input;
    proto::RequestReader reader({}, Dialect::legacy);
    try {
      for (;;) {
        const proto::Status status = reader.read(input);
        if (status == proto::Status::malformed) return;
        if (status == proto::Status::ok) {
          answer(client.get(), reader.request());
          input.erase(0, reader.size());
          continue;
        }
        std::byte buffer[256];
        const std::size_t got = net::recv_some(client.get(), buffer, soon());
        input.append(reinterpret_cast<const char*>(buffer), got);
      }
    } catch (const net::ConnectionClosed&) {
    }
  }
  void answer(int client, const proto::Request& request) {
    std::string reply;
    const std::string key(request.contents.keys.empty() ? "" : request.contents.keys.front());
    proto::Contents contents;
    switch (request.op) {
      case Op::num_keys: contents.number = static_cast<std::int64_t>(values_.size()); break;
      case Op::set: values_[key] = request.contents.values.at(0); return;
      case Op::check: contents.number = values_.contains(key) ? proto::kReady : proto::kNotReady; break;
      case Op::wait:
        if (!values_.contains(key)) return;  // nothing comes, and nothing cancels it
        contents.number = proto::kStopWaiting;
        break;
      case Op::get: contents.values = {values_.at(key)}; break;
      case Op::delete_key: contents.number = static_cast<std::int64_t>(values_.erase(key)); break;
      default: ADD_FAILURE() << "not expected: " << proto::shape_of(request.op).name; return;
    }
    proto::write_reply(reply, request.op, contents);
    net::send_all(client, reply, soon());
  }

  UniqueFd listener_;
  std::map<std::string, std::string> values_;
  std::thread thread_;
};

TEST(AgentStore, OfThe113Era) {
  OldServer server(3);  // the greeting of today, the question, and after the wait that was given up
  {
    AgentStore agent(server.address(), soon());
    EXPECT_EQ(agent.dialect(), Dialect::legacy);
    agent.set("k", "v", soon());
    EXPECT_EQ(agent.get("k", soon()), "v");
    agent.erase("k", soon());
    EXPECT_THROW(agent.get("k", Deadline::after(10ms)), Timeout);
    agent.set("k", "w", soon());
    EXPECT_EQ(agent.get("k", soon()), "w");
  }
}

TEST(AgentStore, WhatAnswersNeitherIsSaidWithBothReasons) {
  const UniqueFd silent = net::tcp_listen({"127.0.0.1", 0});  // accepts, by its queue, and says nothing
  try {
    AgentStore agent(net::local_address(silent.get()), Deadline::after(50ms));
    FAIL() << "found a store";
  } catch (const Timeout& error) {
    EXPECT_THAT(error.what(), HasSubstr("127.0.0.1:"));
  }
}

TEST(AgentStore, AnAgentThatGoesIsAStoreErrorWithItsAddress) {
  auto server = std::make_unique<store::TcpStoreServer>();
  const std::string address = server->address().to_string();
  AgentStore agent(server->address(), soon());
  server.reset();
  try {
    agent.get("k", soon());
    FAIL() << "found a key";
  } catch (const StoreError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr(address), HasSubstr("the agent has ended")));
  }
}

}  // namespace
}  // namespace lockstep::rendezvous
