// SPDX-License-Identifier: Apache-2.0
#include "launcher/hosts/agent_message.h"

#include <utility>
#include <vector>

#include "launcher/process/stacks.h"
#include "runtime/base/printable.h"
#include "runtime/base/record.h"

namespace lockstep::launcher {
namespace {

// A rank that ended, flat.
struct EndRecord {
  int rank = 0;
  std::string host = {};
  int pid = 0;
  int by_signal = 0;
  int value = 0;
  int dumped_core = 0;
  int program = 0;
  int has_no_code = 0;
  std::int64_t cpu_limit = 0;
  int killed = 0;
  std::int64_t memory_kills = 0;
  std::int64_t steps_done = -1;
  std::string texts = {};  // the log's path, then the last lines
};

constexpr auto kEndFields = [](auto& end, auto& fields) {
  fields.kind("rank end 1");
  fields("rank", end.rank, 0);
  fields("host", end.host);
  fields("pid", end.pid, 0);
  fields("by-signal", end.by_signal, 0, 1);
  fields("value", end.value, 0, 255);
  fields("core", end.dumped_core, 0, 1);
  fields("program", end.program, 0);
  fields("no-code", end.has_no_code, 0, 1);
  fields("cpu-limit", end.cpu_limit, std::int64_t{0});
  fields("killed", end.killed, 0, 1);
  fields("memory-kills", end.memory_kills, std::int64_t{0});
  fields("steps-done", end.steps_done, std::int64_t{-1});
  fields.rest("texts", end.texts);
};

struct StopRecord {
  int signal = 0;
  int insists = 0;
};

constexpr auto kStopFields = [](auto& stop, auto& fields) {
  fields.kind("stop asked 1");
  fields("signal", stop.signal, 1, 64);
  fields("insists", stop.insists, 0, 1);
};

constexpr auto kGoneFields = [](auto& gone, auto& fields) {
  fields.kind("ranks gone 1");
  fields("node", gone.node, 0);
  fields("exit-code", gone.exit_code, 0, 255);
};

struct OrderRecord {
  int kind = 0;
  int signal = 0;
  int rank = -1;
  int pid = 0;
  int question = 0;
  std::string text = {};
};

constexpr auto kOrderFields = [](auto& order, auto& fields) {
  fields.kind("order 1");
  fields("what", order.kind, 0, static_cast<int>(Order::Kind::take_stacks));
  fields("signal", order.signal, 0, 64);
  fields("rank", order.rank, -1);
  fields("pid", order.pid, 0);
  fields("question", order.question, 0);
  fields.rest("text", order.text);
};

struct StacksRecord {
  int question = 0;
  int rank = 0;
  std::string lines = {};
};

constexpr auto kStacksFields = [](auto& stacks, auto& fields) {
  fields.kind("stacks 1");
  fields("question", stacks.question, 0);
  fields("rank", stacks.rank, 0);
  fields.rest("lines", stacks.lines);
};

struct OverRecord {
  int exit_code = 0;
  int again = 0;
};

constexpr auto kOverFields = [](auto& over, auto& fields) {
  fields.kind("start over 1");
  fields("exit-code", over.exit_code, 0, 255);
  fields("again", over.again, 0, 1);
};

struct WordRecord {
  int start = 0;
  std::string message = {};
};

constexpr auto kWordFields = [](auto& word, auto& fields) {
  fields.kind("word 1");
  fields("start", word.start, 0);
  fields.rest("message", word.message);
};

struct Encoder {
  std::string operator()(const RankEnd& end) const {
    std::vector<std::string> texts = {end.log};
    texts.insert(texts.end(), end.last_lines.begin(), end.last_lines.end());
    return write_record(EndRecord{.rank = end.rank,
                                  .host = end.host,
                                  .pid = end.pid,
                                  .by_signal = end.ending.by_signal ? 1 : 0,
                                  .value = end.ending.value,
                                  .dumped_core = end.ending.dumped_core ? 1 : 0,
                                  .program = end.ending.program,
                                  .has_no_code = end.ending.has_no_code ? 1 : 0,
                                  .cpu_limit = end.ending.cpu_limit,
                                  .killed = end.killed ? 1 : 0,
                                  .memory_kills = static_cast<std::int64_t>(end.memory_kills),
                                  .steps_done = end.steps_done.value_or(-1),
                                  .texts = write_texts(texts)},
                        kEndFields);
  }
  std::string operator()(const Cause& cause) const { return lockstep::encode(cause); }
  std::string operator()(const StopAsked& stop) const {
    return write_record(StopRecord{.signal = stop.signal, .insists = stop.insists ? 1 : 0}, kStopFields);
  }
  std::string operator()(const RanksGone& gone) const { return write_record(gone, kGoneFields); }
  std::string operator()(const Order& order) const {
    return write_record(OrderRecord{.kind = static_cast<int>(order.kind),
                                    .signal = order.signal,
                                    .rank = order.rank,
                                    .pid = order.pid,
                                    .question = order.question,
                                    .text = order.text},
                        kOrderFields);
  }
  std::string operator()(const TakenStacks& stacks) const {
    return write_record(
        StacksRecord{.question = stacks.question, .rank = stacks.rank, .lines = write_texts(stacks.lines)},
        kStacksFields);
  }
  std::string operator()(const HostCame& came) const { return lockstep::launcher::encode(came.host); }
  std::string operator()(const StartOver& over) const {
    return write_record(OverRecord{.exit_code = over.exit_code, .again = over.again ? 1 : 0}, kOverFields);
  }
};

std::optional<RankEnd> decode_end(std::string_view text) {
  const auto record = read_record<EndRecord>(text, kEndFields);
  auto texts = record ? read_texts(record->texts) : std::nullopt;
  if (!texts || texts->empty() || texts->size() > kShownLines + 1) return std::nullopt;
  RankEnd end;
  end.rank = record->rank;
  end.host = printable(record->host, 255);
  end.pid = record->pid;
  end.log = texts->front();
  for (std::size_t i = 1; i < texts->size(); ++i) end.last_lines.push_back(printable_lines((*texts)[i]));
  end.ending = {.by_signal = record->by_signal == 1,
                .value = record->value,
                .dumped_core = record->dumped_core == 1,
                .program = record->program,
                .has_no_code = record->has_no_code == 1,
                .cpu_limit = record->cpu_limit};
  end.killed = record->killed == 1;
  end.memory_kills = static_cast<std::uint64_t>(record->memory_kills);
  if (record->steps_done >= 0) end.steps_done = record->steps_done;
  return end;
}

std::optional<TakenStacks> decode_stacks(std::string_view text) {
  const auto record = read_record<StacksRecord>(text, kStacksFields);
  auto lines = record ? read_texts(record->lines) : std::nullopt;
  if (!lines || lines->size() > kMostStackLines) return std::nullopt;
  for (std::string& line : *lines) line = printable(line, kMostStackLineBytes);
  return TakenStacks{.question = record->question, .rank = record->rank, .lines = std::move(*lines)};
}

std::optional<AgentMessage> decode_message(std::string_view text) {
  if (auto end = decode_end(text)) return std::move(*end);
  if (auto cause = decode_cause(text)) return std::move(*cause);
  if (const auto stop = read_record<StopRecord>(text, kStopFields)) {
    return StopAsked{.signal = stop->signal, .insists = stop->insists == 1};
  }
  if (const auto gone = read_record<RanksGone>(text, kGoneFields)) return *gone;
  if (const auto over = read_record<OverRecord>(text, kOverFields)) {
    return StartOver{.exit_code = over->exit_code, .again = over->again == 1};
  }
  if (auto host = decode_host_facts(text)) return HostCame{std::move(*host)};
  if (auto order = read_record<OrderRecord>(text, kOrderFields)) {
    return Order{.kind = static_cast<Order::Kind>(order->kind),
                 .text = std::move(order->text),
                 .signal = order->signal,
                 .rank = order->rank,
                 .pid = order->pid,
                 .question = order->question};
  }
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
