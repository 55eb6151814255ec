// SPDX-License-Identifier: Apache-2.0
// fuzz_seeds FOLDER: writes the transcripts of tests/golden as inputs of the fuzz targets, into FOLDER/TARGET/.
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <stdexcept>
#include <string>

#include "proto/request.h"
#include "tests/golden/golden.h"

namespace lockstep {
namespace {

using golden::Conversation;
using golden::Step;

void save(const std::filesystem::path& file, const std::string& bytes) {
  std::filesystem::create_directories(file.parent_path());
  std::ofstream out(file, std::ios::binary);
  out << bytes;
  if (!out.flush()) throw std::runtime_error(file.string() + ": can't be written");
}

// The number by which fuzz_decoder.cc chooses the reply's operation.
char choice_of(proto::Op op) {
  if (op == proto::Op::watch_key) return 0;
  if (op == proto::Op::validate) return 1;
  char number = 2;
  for (int code = 0; code < 256; ++code) {
    const auto other = proto::op_from_code(static_cast<std::uint8_t>(code), proto::Dialect::lockstep);
    if (!other) continue;
    if (*other == op) return number;
    ++number;
  }
  throw std::runtime_error("an operation of no dialect");
}

void decoder_seeds(const Conversation& conversation, const std::filesystem::path& folder) {
  const std::string name = golden::test_name(conversation);
  std::map<std::string, std::string> streams;
  std::map<std::pair<char, proto::Op>, std::size_t> asked;
  for (const Step& step : conversation.steps) {
    if (step.kind == Step::Kind::request) asked[{step.client, step.op}] = contents_of(step).keys.size();
    if (step.from_client()) {
      std::string& stream = streams[name + "_" + step.client];
      if (stream.empty()) stream = {static_cast<char>(conversation.dialect), 0, 3, 1};
      stream += step.bytes;
    }
    if (step.kind == Step::Kind::reply) {
      const auto keys = static_cast<char>(asked[{step.client, step.op}]);
      const std::string_view op = proto::shape_of(step.op).name;
      streams["reply_" + std::string(op) + "_" + std::to_string(step.bytes.size())] =
          std::string{3, choice_of(step.op), keys, 1} + step.bytes;
    }
    if (step.kind == Step::Kind::frame || step.kind == Step::Kind::event) {
      const bool frame = step.kind == Step::Kind::frame;
      std::string& stream = streams[frame ? "frames" : "events"];
      if (stream.empty()) stream = {static_cast<char>(frame ? 4 : 5), 0, 3, 1};
      stream += step.bytes;
    }
  }
  for (const auto& [file, bytes] : streams) save(folder / file, bytes);
}

// Actions of fuzz_session.cc: a byte for client and action, and what belongs to it. `flags` say what server it is; one
// with a secret is greeted by an action, because its nonce is new each time.
std::string session_seed(const Conversation& conversation, char flags) {
  constexpr std::size_t kMostAtOnce = 255;
  constexpr char kExpire = 4 << 2;
  constexpr char kGreet = 7 << 2;
  // The recorded proof fits no new nonce: a wrong secret, whose answer comes after a while.
  const bool is_wrong = flags != 0 && conversation.name == "lockstep: proved";
  std::string actions(1, flags);
  for (const Step& step : conversation.steps) {
    const auto client = static_cast<char>(step.client - 'a');
    if (step.kind == Step::Kind::deadline) actions.push_back(static_cast<char>(kExpire | client));
    if (!step.from_client()) continue;
    if (flags != 0 && !is_wrong && step.op == proto::Op::hello) {
      actions.push_back(static_cast<char>(kGreet | client));
      continue;
    }
    for (std::size_t at = 0; at < step.bytes.size(); at += kMostAtOnce) {
      const std::string piece = step.bytes.substr(at, kMostAtOnce);
      actions += {client, static_cast<char>(piece.size())};
      actions += piece;
    }
  }
  if (is_wrong) actions.push_back(kExpire);
  return actions;
}

// Three members: the last hears that one was lost, one failed, and of the time that passes.
std::string members_seed() {
  constexpr char kPass = 2 << 2;
  constexpr char kBreakOff = 6 << 2;
  constexpr char kGreet = 7 << 2;
  std::string actions(1, 0);
  const auto send = [&](int client, const proto::Request& request) {
    std::string bytes;
    proto::write_request(bytes, request);
    actions += {static_cast<char>(client), static_cast<char>(bytes.size())};
    actions += bytes;
  };
  for (int client = 0; client < 3; ++client) {
    const std::string rank = std::to_string(client);
    actions.push_back(static_cast<char>(kGreet | client));
    send(client, {proto::Op::register_member, {{"/0"}, {rank, "3", "host h\npid 7\nboot_id b\n", ""}, 0}});
    send(client, {proto::Op::heartbeat, {{}, {client == 1 ? "traced" : "in=all_reduce step=12"}, 5}});
  }
  actions.push_back(kBreakOff);
  send(1, {proto::Op::report, {{}, {"NaN"}, 0}});
  send(2, {proto::Op::message, {{}, {"word"}, 0}});
  send(2, {proto::Op::say, {{"/g"}, {"0 2", "word"}, 0}});
  actions += {kPass, 100};
  send(2, {proto::Op::goodbye, {{}, {}, 6}});
  actions += {kPass, 100};
  return actions;
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: " << argv[0] << " FOLDER\n";
    return 2;
  }
  const std::filesystem::path folder = argv[1];
  for (const auto& conversation : lockstep::golden::conversations()) {
    lockstep::decoder_seeds(conversation, folder / "decoder");
    const std::string name = lockstep::golden::test_name(conversation);
    lockstep::save(folder / "session" / name, lockstep::session_seed(conversation, 0));
    if (conversation.dialect == lockstep::proto::Dialect::lockstep) {
      lockstep::save(folder / "session" / (name + "_secret"), lockstep::session_seed(conversation, 1));
    }
  }
  lockstep::save(folder / "session" / "members", lockstep::members_seed());
  return 0;
}
