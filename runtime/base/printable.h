// SPDX-License-Identifier: Apache-2.0
// Text from outside (a file, a variable, a peer, the program), as it may stand in a message or on a terminal.
//
// Every line that the library writes by itself passes through printable_lines(). Code that puts such a text into a
// message passes it through printable(), so that the message stays one line of bounded length wherever a program shows
// it.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "runtime/base/internal_api.h"

namespace lockstep {

// The text as UTF-8 that a terminal only shows: a control character but newline becomes '?' (a tab ' '), and so does a
// mark that breaks lines or turns the direction of text, and each byte that is not UTF-8.
std::string printable_lines(std::string_view text);

// printable() in one line: a newline becomes ' ' too. At most `most` bytes of `text`, whole characters, and "..."
// behind them if that is not all of it.
LOCKSTEP_INTERNAL_API std::string printable(std::string_view text, std::size_t most = 80);

// The text of an exception, without the backtrace of fifty lines that LibTorch's end in. The library is not known here;
// its words are.
std::string_view without_backtrace(std::string_view text);

}  // namespace lockstep
