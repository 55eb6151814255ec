// SPDX-License-Identifier: Apache-2.0
#include "launcher/hosts/agent_message.h"

#include <utility>

#include "launcher/process/stacks.h"
#include "runtime/base/printable.h"
#include "runtime/base/record.h"

namespace lockstep::launcher {
namespace {

constexpr auto kEndFields = [](auto& end, auto& fields) {
  fields.kind("rank end");
  fields("rank", end.rank, 0);
  fields("host", end.host);
  fields("pid", end.pid, 0);
  fields("by-signal", end.ending.by_signal);
  fields("value", end.ending.value, 0, 255);
  fields("core", end.ending.dumped_core);
  fields("program", end.ending.program, 0);
  fields("no-code", end.ending.has_no_code);
  fields("cpu-limit", end.ending.cpu_limit, std::int64_t{0});
  fields("killed", end.killed);
  fields("memory-kills", end.memory_kills, std::int64_t{0});
  fields("steps-done", end.steps_done);
  fields("saved-step", end.saved_step);
  fields.lines("log", end.log);
  fields.list("last-lines", end.last_lines);
};

constexpr auto kStopFields = [](auto& stop, auto& fields) {
  fields.kind("stop asked");
  fields("signal", stop.signal, 1, 64);
  fields("insists", stop.insists);
};

constexpr auto kGoneFields = [](auto& gone, auto& fields) {
  fields.kind("ranks gone");
  fields("node", gone.node, 0);
  fields("exit-code", gone.exit_code, 0, 255);
};

constexpr auto kOrderFields = [](auto& order, auto& fields) {
  fields.kind("order");
  fields("what", order.kind, Order::Kind::take_stacks);
  fields("signal", order.signal, 0, 64);
  fields("rank", order.rank, -1);
  fields("pid", order.pid, 0);
  fields("question", order.question, 0);
  fields.lines("text", order.text);
};

constexpr auto kStacksFields = [](auto& stacks, auto& fields) {
  fields.kind("stacks");
  fields("question", stacks.question, 0);
  fields("rank", stacks.rank, 0);
  fields.list("lines", stacks.lines);
};

constexpr auto kMadeFields = [](auto&, auto& fields) { fields.kind("plan made"); };

constexpr auto kOverFields = [](auto& over, auto& fields) {
  fields.kind("start over");
  fields("exit-code", over.exit_code, 0, 255);
  fields("again", over.again);
};

struct WordRecord {
  int start = 0;
  std::string message = {};
};

constexpr auto kWordFields = [](auto& word, auto& fields) {
  fields.kind("word");
  fields("start", word.start, 0);
  fields.lines("message", word.message);
};

struct Encoder {
  std::string operator()(const RankEnd& end) const { return write_record(end, kEndFields); }
  std::string operator()(const Cause& cause) const { return lockstep::encode(cause); }
  std::string operator()(const StopAsked& stop) const { return write_record(stop, kStopFields); }
  std::string operator()(const RanksGone& gone) const { return write_record(gone, kGoneFields); }
  std::string operator()(const HostJoined& joined) const { return lockstep::launcher::encode(joined.host); }
  std::string operator()(const TakenStacks& stacks) const { return write_record(stacks, kStacksFields); }
  std::string operator()(const Order& order) const { return write_record(order, kOrderFields); }
  std::string operator()(const PlanMade& made) const { return write_record(made, kMadeFields); }
  std::string operator()(const StartOver& over) const { return write_record(over, kOverFields); }
};

// A text from another host is shown on a terminal, so it is made printable; a message that agents do not send is
// rejected.
std::optional<RankEnd> decode_end(std::string_view text) {
  auto end = read_record<RankEnd>(text, kEndFields);
  if (!end || end->last_lines.size() > kShownLines) return std::nullopt;
  end->host = printable(end->host, 255);
  for (std::string& line : end->last_lines) line = printable_lines(line);
  return end;
}

std::optional<TakenStacks> decode_stacks(std::string_view text) {
  auto stacks = read_record<TakenStacks>(text, kStacksFields);
  if (!stacks || stacks->lines.size() > kMostStackLines) return std::nullopt;
  for (std::string& line : stacks->lines) line = printable(line, kMostStackLineBytes);
  return stacks;
}

std::optional<AgentMessage> decode_message(std::string_view text) {
  if (auto end = decode_end(text)) return std::move(*end);
  if (auto cause = decode_cause(text)) return std::move(*cause);
  if (const auto stop = read_record<StopAsked>(text, kStopFields)) return *stop;
  if (const auto gone = read_record<RanksGone>(text, kGoneFields)) return *gone;
  if (read_record<PlanMade>(text, kMadeFields)) return PlanMade{};
  if (const auto over = read_record<StartOver>(text, kOverFields)) return *over;
  if (auto host = decode_host_facts(text)) return HostJoined{std::move(*host)};
  if (auto order = read_record<Order>(text, kOrderFields)) return std::move(*order);
  if (auto stacks = decode_stacks(text)) return std::move(*stacks);
  return std::nullopt;
}

}  // namespace

std::string encode(const AgentWord& word) {
  return write_record(WordRecord{.start = word.start, .message = std::visit(Encoder{}, word.message)}, kWordFields);
}

std::optional<AgentWord> decode_agent_word(std::string_view text) {
  const auto record = read_record<WordRecord>(text, kWordFields);
  auto message = record ? decode_message(record->message) : std::nullopt;
  if (!message) return std::nullopt;
  return AgentWord{record->start, std::move(*message)};
}

}  // namespace lockstep::launcher
