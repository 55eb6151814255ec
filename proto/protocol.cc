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

constexpr std::array kShapes = {
    OpShape{Op::validate, "VALIDATE", kU32, {}},
    OpShape{Op::set, "SET", kKeyValue, {}},
    OpShape{Op::compare_set, "COMPARE_SET", kKeyValueValue, kValue},
    OpShape{Op::get, "GET", kKey, kValue},
    OpShape{Op::add, "ADD", kKeyI64, kI64},
    OpShape{Op::check, "CHECK", kKeys, kU8},
    OpShape{Op::wait, "WAIT", kKeys, kU8},
    OpShape{Op::num_keys, "GETNUMKEYS", {}, kI64},
    OpShape{Op::delete_key, "DELETE_KEY", kKey, kI64},
    OpShape{Op::append, "APPEND", kKeyValue, {}},
    OpShape{Op::multi_get, "MULTI_GET", kKeys, kValues},
    OpShape{Op::multi_set, "MULTI_SET", kPairs, {}},
    OpShape{Op::cancel_wait, "CANCEL_WAIT", {}, kU8},
    OpShape{Op::ping, "PING", kU32, kU32},
};

// shape_of() takes the code for the index.
constexpr bool in_order() {
  for (std::size_t i = 0; i < kShapes.size(); ++i) {
    if (static_cast<std::size_t>(kShapes[i].op) != i) return false;
  }
  return true;
}
static_assert(in_order());

}  // namespace

std::optional<Op> op_from_code(std::uint8_t code) {
  if (code >= kShapes.size()) return std::nullopt;
  return kShapes[code].op;
}

const OpShape& shape_of(Op op) { return kShapes[static_cast<std::size_t>(op)]; }

}  // namespace lockstep::proto
