// SPDX-License-Identifier: Apache-2.0
#include "tests/abi/thrower.h"

#include <array>
#include <utility>

namespace lockstep::testing {
namespace {

template <typename E>
[[noreturn]] void throw_one(const char* text, const Cause* cause) {
  if (cause != nullptr) throw make_error<E>(*cause);
  throw E(text);
}

template <std::size_t... I>
void throw_kind(std::size_t kind, const char* text, const Cause* cause, std::index_sequence<I...>) {
  constexpr std::array throwers{&throw_one<std::tuple_element_t<I, Errors>>...};
  throwers.at(kind)(text, cause);
}

template <std::size_t... I>
const std::type_info* type_of(std::size_t kind, std::index_sequence<I...>) {
  return std::array{&typeid(std::tuple_element_t<I, Errors>)...}.at(kind);
}

using Kinds = std::make_index_sequence<std::tuple_size_v<Errors>>;

void raise(std::size_t kind, const char* text, const Cause* cause) { throw_kind(kind, text, cause, Kinds()); }

std::string caught(void (*call)()) {
  try {
    call();
  } catch (const PeerLost& error) {
    const Cause* const cause = error.cause();
    return cause == nullptr ? "no cause" : cause->text + "|" + cause->host + "|" + std::to_string(cause->step);
  } catch (...) {
    return "another type";
  }
  return "";
}

const std::type_info* type(std::size_t kind) { return type_of(kind, Kinds()); }

}  // namespace
}  // namespace lockstep::testing

extern "C" LOCKSTEP_API const lockstep::testing::Thrower lockstep_test_thrower;
const lockstep::testing::Thrower lockstep_test_thrower{&lockstep::testing::raise, &lockstep::testing::caught,
                                                       &lockstep::testing::type};
