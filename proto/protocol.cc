// SPDX-License-Identifier: Apache-2.0
#include "proto/protocol.h"

#include <array>

namespace lockstep::proto {
namespace {

// Each sequence of fields that occurs.
constexpr Field kU8[] = {Field::u8};
constexpr Field kU32[] = {Field::u32};
constexpr Field kI64[] = {Field::i64};
constexpr Field kKey[] = {Field::key};
constexpr Field kValue[] = {Field::value};
constexpr Field kKeyValue[] = {Field::key, Field::value};
constexpr Field kKeyValueValue[] = {Field::key, Field::value, Field::value};
constexpr Field kKeyI64[] = {Field::key, Field::i64};
constexpr Field kKeys[] = {Field::keys};
constexpr Field kPairs[] = {Field::pairs};
constexpr Field kValues[] = {Field::values};
constexpr Field kItem[] = {Field::item};
constexpr Field kNames[] = {Field::names};
constexpr Field kFrame[] = {Field::status, Field::list};
constexpr Field kI64Value[] = {Field::i64, Field::value};
constexpr Field kI64Keys[] = {Field::i64, Field::keys};
constexpr Field kHello[] = {Field::u32, Field::value, Field::value, Field::value};
constexpr Field kRegister[] = {Field::key, Field::value, Field::value, Field::value, Field::value};

constexpr std::array kShapes = {
    OpShape{Op::validate, "VALIDATE", kU32, {}},
    OpShape{Op::set, "SET", kKeyValue, {}, 0},
    OpShape{Op::compare_set, "COMPARE_SET", kKeyValueValue, kValue, 1},
    OpShape{Op::get, "GET", kKey, kValue, 2},
    OpShape{Op::add, "ADD", kKeyI64, kI64, 3},
    OpShape{Op::check, "CHECK", kKeys, kU8, 4},
    OpShape{Op::wait, "WAIT", kKeys, kU8, 5},
    OpShape{Op::num_keys, "GETNUMKEYS", {}, kI64, 6},
    OpShape{Op::watch_key, "WATCH_KEY", kKey, kU8, 7},
    OpShape{Op::delete_key, "DELETE_KEY", kKey, kI64, 8},
    OpShape{Op::append, "APPEND", kKeyValue, {}},
    OpShape{Op::multi_get, "MULTI_GET", kKeys, kValues},
    OpShape{Op::multi_set, "MULTI_SET", kPairs, {}},
    OpShape{Op::cancel_wait, "CANCEL_WAIT", {}, kU8},
    OpShape{Op::ping, "PING", kU32, kU32},
    OpShape{Op::queue_push, "QUEUE_PUSH", kKeyValue, {}},
    OpShape{Op::queue_pop, "QUEUE_POP", kKey, kItem},
    OpShape{Op::queue_length, "QUEUE_LEN", kKey, kI64},
    OpShape{Op::list_keys, "LIST_KEYS", {}, kNames},
    OpShape{Op::barrier, "BARRIER", kKeyI64, kU8},

    OpShape{Op::hello, "HELLO", kHello, kFrame},
    OpShape{Op::prove, "PROVE", kValue, kFrame},
    OpShape{Op::wait_get, "WAIT_GET", kI64Keys, kFrame},
    OpShape{Op::set_acked, "SET_ACKED", kKeyValue, kFrame},
    OpShape{Op::register_member, "REGISTER", kRegister, kFrame},
    OpShape{Op::heartbeat, "HEARTBEAT", kI64Value, kFrame},
    OpShape{Op::goodbye, "GOODBYE", kI64, kFrame},
    OpShape{Op::report, "REPORT", kValue, kFrame},
    OpShape{Op::message, "MESSAGE", kValue, kFrame},
    OpShape{Op::forward, "FORWARD", kPairs, kFrame},
    OpShape{Op::give_up, "GIVE_UP", kValue, kFrame},
    OpShape{Op::say, "SAY", kKeyValueValue, kFrame},
};

// From a byte to a row of the table.
using Index = std::array<std::int8_t, 256>;
constexpr std::int8_t kNone = -1;

constexpr int code_in(const OpShape& shape, Dialect dialect) {
  const int code = static_cast<int>(shape.op);
  switch (dialect) {
    case Dialect::current: return code < 0x80 ? code : kNone;
    case Dialect::legacy: return shape.legacy_code;
    case Dialect::lockstep: return shape.op != Op::validate && shape.op != Op::watch_key ? code : kNone;
  }
  return kNone;
}

template <typename CodeOf>
constexpr Index index_by(CodeOf code_of_shape) {
  Index index{};
  index.fill(kNone);
  for (std::size_t row = 0; row < kShapes.size(); ++row) {
    const int code = code_of_shape(kShapes[row]);
    if (code == kNone) continue;
    if (index[static_cast<std::size_t>(code)] != kNone) throw "two operations with one code";
    index[static_cast<std::size_t>(code)] = static_cast<std::int8_t>(row);
  }
  return index;
}

constexpr Index kByOp = index_by([](const OpShape& shape) { return static_cast<int>(shape.op); });
constexpr Index kByCode[] = {
    index_by([](const OpShape& shape) { return code_in(shape, Dialect::current); }),
    index_by([](const OpShape& shape) { return code_in(shape, Dialect::legacy); }),
    index_by([](const OpShape& shape) { return code_in(shape, Dialect::lockstep); }),
};

constexpr std::string_view kOpening{"\x00\xce\xf7\x85\x3c", 5};  // VALIDATE and its magic

}  // namespace

std::optional<Dialect> detect_dialect(std::string_view bytes) {
  if (bytes.empty()) return std::nullopt;
  if (static_cast<std::uint8_t>(bytes.front()) == static_cast<std::uint8_t>(Op::hello)) return Dialect::lockstep;
  const std::string_view head = bytes.substr(0, kOpening.size());
  if (head != kOpening.substr(0, head.size())) return Dialect::legacy;
  if (head.size() < kOpening.size()) return std::nullopt;
  return Dialect::current;
}

std::string_view name_of(Dialect dialect) {
  switch (dialect) {
    case Dialect::current: return "torch";
    case Dialect::legacy: return "torch 1.13";
    case Dialect::lockstep: return "lockstep";
  }
  return "unknown";
}

const OpShape& shape_of(Op op) { return kShapes[static_cast<std::size_t>(kByOp[static_cast<std::uint8_t>(op)])]; }

std::optional<Op> op_from_code(std::uint8_t code, Dialect dialect) {
  const std::int8_t row = kByCode[static_cast<std::size_t>(dialect)][code];
  if (row == kNone) return std::nullopt;
  return kShapes[static_cast<std::size_t>(row)].op;
}

std::optional<std::uint8_t> code_of(Op op, Dialect dialect) {
  const int code = code_in(shape_of(op), dialect);
  if (code == kNone) return std::nullopt;
  return static_cast<std::uint8_t>(code);
}

}  // namespace lockstep::proto
